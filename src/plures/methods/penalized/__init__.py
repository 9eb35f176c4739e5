"""Personal models held near a shared one by a squared penalty: FedCLUP, MR-MTL, pFedMe, L2GD."""

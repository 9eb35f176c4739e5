"""Models of which some parts are shared and others private: FedPer, FedRep, FedBN and their kin."""

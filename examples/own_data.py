"""Your own arrays: three imaginary hospitals, what each gets alone and together, and a model for one of them."""

import jax
import jax.numpy as jnp
import numpy as np

import plures
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.methods.local_only import local_only
from plures.models.linear import logistic

NUM_PATIENTS = {"hill": 60, "north": 400, "river": 120}
SHIFT = {"hill": 1.5, "north": 0.0, "river": -1.5}  # how much sicker than average a hospital's patients are
COEFFICIENTS = jnp.array([1.5, -1.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0])


def patients(key: jax.Array, hospital: str) -> tuple[np.ndarray, np.ndarray]:
    """Eight measurements of every patient of a hospital, and whether the patient was ill."""
    key_x, key_y = jax.random.split(key)
    x = jax.random.normal(key_x, (NUM_PATIENTS[hospital], len(COEFFICIENTS)))
    ill = jax.random.bernoulli(key_y, jax.nn.sigmoid(x @ COEFFICIENTS + SHIFT[hospital]))
    return np.asarray(x), np.asarray(ill, np.int32)


def main() -> None:
    keys = jax.random.split(jax.random.key(0), len(NUM_PATIENTS))
    tables = [patients(key, name) for key, name in zip(keys, NUM_PATIENTS, strict=True)]
    federation = plures.data.from_arrays(
        x=np.concatenate([x for x, _ in tables]),
        y=np.concatenate([y for _, y in tables]),
        client=np.repeat(list(NUM_PATIENTS), list(NUM_PATIENTS.values())),
        title="three hospitals",
    )
    model = logistic(federation.shape, ridge=0.01)
    plan = plures.Plan(epochs=2, batch=20, lr=0.1)
    methods = {
        "alone": local_only(model, plan=plan),
        "one for all": fedavg(model, plan=plan),
        "personal": ditto(model, plan=plan, lam=0.1),
    }

    runs = {name: plures.run(method, federation, rounds=40) for name, method in methods.items()}

    print("log-loss on test rows (less is better)")
    print(f"{'hospital':10} {'training rows':>14} " + " ".join(f"{name:>12}" for name in runs))
    for uid, name in enumerate(federation.names):
        losses = [run.clients["personal_test_loss"][uid] for run in runs.values()]
        print(f"{name:10} {federation.count[uid, 0]:14} " + " ".join(f"{loss:12.3f}" for loss in losses))

    patient = np.zeros((1, len(COEFFICIENTS)))
    print("\nan average patient, asked in each hospital:")
    for uid, name in enumerate(federation.names):
        logit = runs["personal"].model_for(uid).predict(patient)[0]
        print(f"{name:10} ill with probability {jax.nn.sigmoid(logit):.2f}")


if __name__ == "__main__":
    main()

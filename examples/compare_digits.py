"""Compare methods on digits from Python: who gains, who loses, and what clients never seen in training get."""

import polars as pl

import plures

METHODS = ["local_only", "fedavg", "ditto:lam=0.5", "oracle"]


def main() -> None:
    federation = plures.data.load("digits", num_clients=40)
    seen, unseen = federation.hold_out(num_clients=8, seed=1)
    plan = plures.Plan(epochs=2, batch=10, lr=0.1)

    result = plures.compare(METHODS, seen, unseen=unseen, rounds=60, plan=plan, seeds=[0])

    print(f"{seen.num_clients} clients in training, {unseen.num_clients} held out; accuracy on test rows\n")
    print(f"{'method':16} {'seen':>6} {'unseen':>7} {'worst tenth':>12} {'worse than alone':>17}")
    for row in result.leaderboard.iter_rows(named=True):
        print(
            f"{row['method']:16} {row['mean']:6.3f} {row['unseen']:7.3f} {row['worst_decile']:12.3f} "
            f"{row['worse_than_alone']:17.0%}"
        )

    score = f"personal_test_{result.metric}"
    table = result.clients.filter(pl.col("seen")).pivot(on="method", index=["name", "train_rows"], values=score)
    gain = table.with_columns(gain=pl.col("ditto:lam=0.5") - pl.col("local_only")).sort("gain")
    print("\nditto against training alone, client by client: the two ends")
    for row in [*gain.head(2).iter_rows(named=True), *gain.tail(2).iter_rows(named=True)]:
        print(f"{row['name']} ({row['train_rows']} training rows): {row['gain']:+.3f}")


if __name__ == "__main__":
    main()

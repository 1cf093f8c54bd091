"""Two processes that hold half of the images each agree on the counts of all of them."""

import torch
from torch import distributed, multiprocessing

from trueshift.metrics import CircularConsistency, MaskCircularConsistency


def striding(images):
    return images[:, :, ::3, ::2].square().mean((2, 3))


def work(rank, folder):
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    data = torch.load(f"{folder}/data.pt")
    size = slice(0, 7) if rank == 0 else slice(7, None)  # halves of unequal size
    given, drawn = CircularConsistency(), CircularConsistency(max_shift=4, seed=3)
    masks = MaskCircularConsistency()
    given.update(data["a"][size], data["b"][size], data["target"][size])
    drawn.update(striding, data["images"][size])
    masks.update(data["mask_a"][size], data["mask_b"][size])
    result = {
        "given": float(given.compute()),
        "given_correct": given.given_correct,
        "interval": given.interval,
        "drawn": float(drawn.compute()),
        "masks": float(masks.compute()),
        "num_here": int(given.num_images),
    }
    torch.save(result, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def test_two_processes_count_as_one(tmp_path, generator):
    data = {
        "a": torch.randint(0, 3, (20,), generator=generator),
        "b": torch.randint(0, 3, (20,), generator=generator),
        "target": torch.randint(0, 3, (20,), generator=generator),
        "images": torch.rand(20, 3, 9, 8, generator=generator),
        "mask_a": torch.randint(0, 2, (20, 4, 4), generator=generator),
        "mask_b": torch.randint(0, 2, (20, 4, 4), generator=generator),
    }
    torch.save(data, tmp_path / "data.pt")
    multiprocessing.spawn(work, (str(tmp_path),), nprocs=2)
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]

    whole, masks = CircularConsistency(), MaskCircularConsistency()
    whole.update(data["a"], data["b"], data["target"])
    masks.update(data["mask_a"], data["mask_b"])
    same = 0.0
    for rank, part in enumerate((data["images"][:7], data["images"][7:])):
        alone = CircularConsistency(max_shift=4, seed=3 + rank)
        alone.update(striding, part)
        same += float(alone.share_sum)
    for result in results:
        assert result["given"] == float(whole.compute())
        assert result["given_correct"] == whole.given_correct
        assert result["interval"] == whole.interval
        assert abs(result["masks"] - float(masks.compute())) < 1e-12
        assert result["drawn"] == same / 20
    assert [result["num_here"] for result in results] == [7, 13]  # unsynced again afterwards

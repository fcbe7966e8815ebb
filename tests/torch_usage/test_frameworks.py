"""Lightning, accelerate and the Hugging Face Trainer give the same rows as a plain loop.

Every framework accumulates gradients over two batches, clips them, schedules both learning rates
and saves a checkpoint from which a second run goes on.
"""

import warnings

import pytest
import safetensors.torch
import torch
from torch.utils.data import Dataset
from torch_usage.reference import Model, batch

import tapas
from tapas.optim import Combined, RowwiseAdagrad

NUM_BATCHES, PARTS, CLIP = 8, 2, 0.5
pytestmark = pytest.mark.slow


class Batches(Dataset):
    """One batch for each item, without collating."""

    def __len__(self):
        return NUM_BATCHES

    def __getitem__(self, number):
        x, target = batch(number)
        return {"x": x, "target": target}


def build(kind=Model):
    model = kind()
    dense = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    return model, Combined(dense, RowwiseAdagrad(model, lr=0.1))


def schedule(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step)


def plain_loop():
    model, optimizer = build()
    scheduler = schedule(optimizer)
    for number in range(NUM_BATCHES):
        (model(*batch(number)) / PARTS).backward()
        if number % PARTS == PARTS - 1:
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return model


@pytest.fixture(scope="module")
def want():
    return plain_loop()


@pytest.fixture(autouse=True)
def _their_warnings_are_theirs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(autouse=True)
def _their_randomness_is_theirs():
    with torch.random.fork_rng(devices=[]):
        yield


def assert_same(model, want):
    for got, wanted in zip(model.rows(), want.rows(), strict=True):
        torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(model.encoder.weight, want.encoder.weight)
    assert model.head.step == NUM_BATCHES


def test_lightning(tmp_path, want):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.optimizer = build()

        def training_step(self, *_):
            return self.model(*batch(self.model.head.step))  # regardless of its epochs

        def configure_optimizers(self):
            scheduler = {"scheduler": schedule(self.optimizer), "interval": "step"}
            return {"optimizer": self.optimizer, "lr_scheduler": scheduler}

    def fit(module, *, max_steps, resume=None):
        trainer = lightning.Trainer(
            max_steps=max_steps,
            accumulate_grad_batches=PARTS,
            gradient_clip_val=CLIP,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            use_distributed_sampler=False,
        )
        data = torch.utils.data.DataLoader(Batches(), batch_size=None)
        trainer.fit(module, data, ckpt_path=resume)
        trainer.save_checkpoint(tmp_path / "saved.ckpt")
        return module.model

    assert_same(fit(Module(), max_steps=NUM_BATCHES // PARTS), want)
    fit(Module(), max_steps=2)
    saved = tmp_path / "saved.ckpt"
    assert_same(fit(Module(), max_steps=NUM_BATCHES // PARTS, resume=saved), want)


def test_accelerate(tmp_path, want):
    import accelerate

    def run(first, last, folder=None):
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=PARTS)
        model, optimizer = build()
        prepared, stepped = accelerator.prepare(model, optimizer)
        scheduler = schedule(stepped.optimizer)
        accelerator.register_for_checkpointing(scheduler)
        if first:
            accelerator.load_state(folder)
        for number in range(first, last):
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(*batch(number)))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(prepared.parameters(), CLIP)
                stepped.step()
                if accelerator.sync_gradients:
                    scheduler.step()
                stepped.zero_grad()
        if folder is not None:
            accelerator.save_state(folder)
            accelerator.save_model(prepared, f"{folder}/model")
        return model

    assert_same(run(0, NUM_BATCHES), want)
    run(0, 4, tmp_path)
    model = run(4, NUM_BATCHES, tmp_path)
    assert_same(model, want)
    saved = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    assert torch.equal(saved["head.table.weight"], model.rows()[0])


def test_the_hugging_face_trainer(tmp_path, want):
    import transformers

    class Named(Model):
        def forward(self, x, target):
            return {"loss": super().forward(x, target)}

    def run(*, max_steps, resume=None):
        model, optimizer = build(Named)
        trainer = transformers.Trainer(
            model,
            transformers.TrainingArguments(
                output_dir=str(tmp_path),
                max_steps=max_steps,
                per_device_train_batch_size=1,
                gradient_accumulation_steps=PARTS,
                max_grad_norm=CLIP,
                save_strategy="steps",
                save_steps=2,
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                remove_unused_columns=False,
                dataloader_pin_memory=False,
                average_tokens_across_devices=False,
            ),
            train_dataset=Batches(),
            data_collator=lambda rows: rows[0],
            optimizers=(optimizer, schedule(optimizer)),
        )
        trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(Batches())
        trainer.train(resume_from_checkpoint=resume)
        return model

    assert_same(run(max_steps=NUM_BATCHES // PARTS), want)
    run(max_steps=2)
    checkpoint = str(tmp_path / "checkpoint-2")
    assert_same(run(max_steps=NUM_BATCHES // PARTS, resume=checkpoint), want)


def test_a_pretrained_model_can_be_saved_and_loaded(tmp_path):
    import transformers

    class Pretrained(transformers.PreTrainedModel):
        config_class = transformers.PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.encoder = torch.nn.utils.skip_init(torch.nn.Linear, 4, 4)
            self.head = tapas.TapasSoftmax(9, 4, num_samples=3)
            self.post_init()

        def _init_weights(self, module):
            """All of it is saved."""

        def forward(self, x, target):
            return self.head(self.encoder(x), target)

    x, target = torch.ones(2, 4), torch.tensor([3, 8])
    first = Pretrained(transformers.PretrainedConfig())
    optimizer = RowwiseAdagrad(first, lr=0.1)
    torch.nn.init.eye_(first.encoder.weight)
    torch.nn.init.zeros_(first.encoder.bias)
    first(x, target).backward()
    optimizer.step()
    first.save_pretrained(tmp_path)
    again = Pretrained.from_pretrained(tmp_path)
    assert torch.equal(again.head.table.weight, first.head.table.weight)
    assert again.head.step == 1
    assert torch.equal(again(x, target), first(x, target))
    optimizer = RowwiseAdagrad(again, lr=0.1)
    before = again.head.table.weight.clone()
    again(x, target).backward()
    optimizer.step()
    assert not torch.equal(again.head.table.weight, before)

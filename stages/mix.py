"""Artifacts of other runs whose rows are mixed into training (`train.mix`).

`plan` calls this: it reads manifests and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.artifact import FORMAT, MANIFEST, read_json
from pipeline.files import open_files
from pipeline.stage import Json, RawInput, StageError, UserError
from pipeline.store import Artifact
from stages.train_config import MixedConfig


def open_mixed(path: str) -> Artifact:
    """The finished artifact in a folder `<store>/<node>/<fingerprint>`, on any filesystem.

    Raises:
        UserError: there is none.
    """
    files, inside = open_files(path)
    manifest = read_json(files.read(f"{inside}/{MANIFEST}"))
    if manifest is None or manifest.get("format", 0) > FORMAT:
        raise UserError(
            f"train.mix: {path} holds no finished artifact that this version reads: give the "
            "folder of one, <store>/mask/<length>/<fingerprint>, as clozeline plan --json prints it"
        )
    artifact = Artifact(files, inside, manifest)
    if manifest["files"] and not files.has_folder(artifact.data):
        raise UserError(f"train.mix: {path} has a manifest, and its files are gone")
    return artifact


def list_mix(mix: Sequence[MixedConfig], stage: str, max_seq_length: int) -> RawInput:
    """What is fingerprinted of mixed artifacts: what is in them, not where they lie.

    Args:
        mix: as configured.
        stage: "mask", or "pairs" where masks are drawn while reading.
        max_seq_length: of the phase.

    Raises:
        UserError: an artifact is not there, or of another kind or length.
    """
    entries: list[Json] = []
    for mixed in mix:
        artifact = open_mixed(mixed.path)
        made_by, _, length = artifact.node.partition("/")
        if made_by != stage or not length.isdigit():
            when = "loading" if stage == "pairs" else "ahead"
            raise UserError(
                f"train.mix: {mixed.path} is of {artifact.node}; with mask.when={when} rows come "
                f"from an artifact of {stage}/{max_seq_length}"
            )
        if int(length) > max_seq_length:
            raise UserError(
                f"train.mix: {mixed.path} has rows of up to {length} tokens, and this phase "
                f"{max_seq_length}: give phases that differ a mix of their own (phases.mix)"
            )
        entries.append({"name": artifact.node, "output_digest": artifact.output_digest})
    words = ", ".join(f"{entry['name']} {entry['output_digest'][:12]}" for entry in entries)
    return RawInput(entries, f"mixed in: {words}")


def open_mix(paths: Sequence[str], listed: RawInput | None) -> list[Artifact]:
    """The artifacts of `list_mix`, for the node that reads them.

    Raises:
        StageError: one is another than when it was listed.
    """
    # Behind those of given weights, where there are any.
    entries: Sequence[Mapping[str, Json]] = (
        [] if listed is None else listed.entries[len(listed.entries) - len(paths) :]
    )
    artifacts = [open_mixed(path) for path in paths]
    for path, artifact, entry in zip(paths, artifacts, entries, strict=True):
        if artifact.output_digest != entry["output_digest"]:
            raise StageError(f"train.mix: {path} changed while this run was going on: run again")
    return artifacts

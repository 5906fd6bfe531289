/** What a version holds beside tables: graph, slot spec and golden requests, of the pruned model that is built or of the parent. */
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { HashSpec, Slot } from '../../lib/core/slots.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import type { BuildRequest } from './build-request.ts';
import { checkGraph } from './graph-check.ts';
import { DATA_FILE, isPrunedFolder, readGolden, readPrunedModel } from './pruned-model.ts';

/** Keys, not feature strings: for a model pruned without features.json, and for tables without a model. */
const RAW_KEYS: HashSpec = { scheme: 'raw', seed: 0n, modulo: 0n };

/** How --sign-key makes keys of text. */
const SIGNED_KEYS: HashSpec = { scheme: 'xxh64-concat', seed: 0n, modulo: 0n };

export interface VersionContent {
  readonly hash: HashSpec;
  readonly slots: readonly Slot[];
  /** Empty for a version of tables alone. */
  readonly files: Map<string, Uint8Array>;
}

/** @throws CubeError saying which file is missing or wrong */
export async function versionContent(
  target: string,
  request: BuildRequest,
  parent: Manifest | undefined,
): Promise<VersionContent> {
  const folders = request.tables.flatMap(({ input }) => ('paths' in input ? input.paths : []));
  const [folder, second] = folders.filter(isPrunedFolder);
  if (second !== undefined) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${folder} and ${second} are two models; a version has one`,
    );
  }
  const content =
    folder === undefined
      ? await carriedContent(target, request, parent)
      : await prunedContent(folder, request, parent);
  if (request.golden !== undefined) content.files.set('golden.jsonl', readGolden(request.golden));
  return content;
}

async function carriedContent(
  target: string,
  request: BuildRequest,
  parent: Manifest | undefined,
): Promise<VersionContent> {
  const files = new Map<string, Uint8Array>();
  for (const { path } of parent?.files ?? []) {
    const { bundle, version } = parent!;
    files.set(path, await openRepository(target).readVersionFile(bundle, version, path));
  }
  const signed = request.tables.flatMap(({ input }) =>
    'paths' in input && input.signKey !== undefined ? [input.signKey] : [],
  );
  const slots = [...new Set(signed)].map((index) => ({ name: `slot${index}`, index }));
  if (parent === undefined) {
    return { hash: slots.length === 0 ? RAW_KEYS : SIGNED_KEYS, slots, files };
  }
  if (slots.length > 0) checkHash(SIGNED_KEYS, parent, '--sign-key');
  // The slots of a model are its own; tables alone have those that signed them.
  const added = slots.filter(({ index }) => parent.slots.every((slot) => slot.index !== index));
  return {
    hash: parent.hash,
    slots: files.size > 0 ? parent.slots : [...parent.slots, ...added],
    files,
  };
}

async function prunedContent(
  folder: string,
  { jobMode }: BuildRequest,
  parent: Manifest | undefined,
): Promise<VersionContent> {
  const { spec, graph, graphPath, files } = readPrunedModel(folder);
  const data = files.get(DATA_FILE);
  await checkGraph({ graph, data: data && new Map([[DATA_FILE, data]]), source: graphPath }, spec);
  const hash = spec.features?.hash ?? RAW_KEYS;
  if (jobMode === 'delta' && parent !== undefined) checkHash(hash, parent, 'the model');
  return { hash, slots: spec.features?.slots ?? [], files: new Map(files) };
}

/** Keys made otherwise are not found among those of the parent. */
function checkHash(hash: HashSpec, { hash: before, version }: Manifest, what: string): void {
  const same =
    hash.scheme === before.scheme && hash.seed === before.seed && hash.modulo === before.modulo;
  if (same) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${what} hashes features otherwise than version ${version}, whose keys are ${before.scheme}; build a base`,
  );
}

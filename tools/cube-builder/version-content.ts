/** The non-table content of a version (graph, slots, golden rows), from model or parent. */
import { CubeError } from '../../lib/core/errors.ts';
import { GOLDEN_FILE, hasScoreFeature, splitGoldenRow } from '../../lib/core/golden-row.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import {
  areEqualKeyRules,
  type FeatureSpec,
  type HashSpec,
  readSlotSpec,
  type SlotKeyRule,
} from '../../lib/core/slots.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import type { BuildRequest } from './build-request.ts';
import { checkGraph } from './graph-check.ts';
import { DATA_FILE, isPrunedFolder, readGolden, readPrunedModel } from './pruned-model.ts';

/** Requests contain keys instead of features: models without features.json, tables alone. */
const RAW_KEYS: HashSpec = { scheme: 'raw', seed: 0n, modulo: 0n };

/** How --sign-key hashes text keys. */
const SIGNED_KEYS: HashSpec = { scheme: 'xxh64-concat', seed: 0n, modulo: 0n };

export interface VersionContent {
  readonly hash: HashSpec;
  readonly slots: readonly SlotKeyRule[];
  /** Files by name; empty for a version that has only tables. */
  readonly files: Map<string, Uint8Array>;
}

/** @throws CubeError for a missing or wrong file */
export async function readVersionContent(
  target: string,
  request: BuildRequest,
  parent: Manifest | undefined,
): Promise<VersionContent> {
  const folders = request.tables.flatMap(({ input }) => ('paths' in input ? input.paths : []));
  const [folder, second] = folders.filter(isPrunedFolder);
  if (second !== undefined) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${folder} and ${second} are two models, but a version has one: build separate versions`,
    );
  }
  const content =
    folder === undefined
      ? await carryOverContent(target, request, parent)
      : await readPrunedContent(folder, request, parent);
  if (request.golden !== undefined) {
    const features = readFeatures(content.files.get('slots.json'));
    content.files.set(GOLDEN_FILE, readGolden(request.golden, features));
  }
  return content;
}

function readFeatures(slots: Uint8Array | undefined): FeatureSpec | undefined {
  if (slots === undefined) return undefined;
  return readSlotSpec(JsonReader.parse(new TextDecoder().decode(slots), 'slots.json')).features;
}

async function carryOverContent(
  target: string,
  request: BuildRequest,
  parent: Manifest | undefined,
): Promise<VersionContent> {
  const files = new Map<string, Uint8Array>();
  if (parent !== undefined) {
    const repository = openRepository(target);
    for (const { path } of parent.files) {
      files.set(path, await repository.readManifestFile(parent, path));
    }
    if (request.jobMode === 'delta') dropScores(files);
  }
  const signed = request.tables.flatMap(({ input }) =>
    'paths' in input && input.signKey !== undefined ? [input.signKey] : [],
  );
  const slots = [...new Set(signed)].map((index) => ({ name: `slot${index}`, index }));
  if (parent === undefined) {
    return { hash: slots.length === 0 ? RAW_KEYS : SIGNED_KEYS, slots, files };
  }
  if (slots.length > 0) checkHash(SIGNED_KEYS, parent, '--sign-key');
  // A model defines its own slots; a version without a model has those of the signed keys.
  const added = slots.filter(({ index }) => parent.slots.every((slot) => slot.index !== index));
  return {
    hash: parent.hash,
    slots: files.size > 0 ? parent.slots : [...parent.slots, ...added],
    files,
  };
}

/** Removes expected scores: a delta has other rows, so the parent's scores do not apply to it. */
function dropScores(files: Map<string, Uint8Array>): void {
  const golden = new TextDecoder().decode(files.get(GOLDEN_FILE));
  const slots = files.get('slots.json');
  if (slots === undefined || !golden.includes('"score"')) return;
  const features = readFeatures(slots);
  if (features !== undefined && hasScoreFeature(features)) return;
  const lines = golden.split('\n').map((line) => {
    if (line.trim() === '') return line;
    const { row, score } = splitGoldenRow(JSON.parse(line), GOLDEN_FILE);
    return Number.isNaN(score) ? line : JSON.stringify(row);
  });
  files.set(GOLDEN_FILE, new TextEncoder().encode(lines.join('\n')));
}

async function readPrunedContent(
  folder: string,
  { jobMode }: BuildRequest,
  parent: Manifest | undefined,
): Promise<VersionContent> {
  const { spec, graph, graphPath, files } = readPrunedModel(folder, jobMode === 'delta');
  const data = files.get(DATA_FILE);
  await checkGraph({ graph, data: data && new Map([[DATA_FILE, data]]), source: graphPath }, spec);
  const hash = spec.features?.hash ?? RAW_KEYS;
  const slots = spec.features?.slots ?? [];
  if (jobMode === 'delta' && parent !== undefined) {
    checkHash(hash, parent, 'the model');
    checkSlots(slots, parent);
  }
  return { hash, slots, files: new Map(files) };
}

/** With a different hash, lookups would not find the parent's keys. */
function checkHash(hash: HashSpec, { hash: before, version }: Manifest, what: string): void {
  const isSame =
    hash.scheme === before.scheme && hash.seed === before.seed && hash.modulo === before.modulo;
  if (isSame) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${what} hashes features differently from parent version ${version} (${before.scheme}); ` +
      'build a base',
  );
}

/** The same for a slot with a different index or modulo. */
function checkSlots(slots: readonly SlotKeyRule[], parent: Manifest): void {
  const before = new Map(parent.slots.map((slot) => [slot.name, slot]));
  const changed = slots.find((slot) => !areEqualKeyRules(slot, before.get(slot.name) ?? slot));
  if (changed === undefined) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `the model computes the keys of slot ${changed.name} differently from parent version ` +
      `${parent.version} (index, modulo or missing); build a base`,
  );
}

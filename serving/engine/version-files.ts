/** Reads the files of a version that its engine needs: slots.json, and the graph with its data. */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import {
  areEqualKeyRules,
  type FeatureSpec,
  readSlotSpec,
  type SlotSpec,
} from '../../lib/core/slots.ts';
import type { Repository } from '../../lib/repository/repository.ts';

const MODEL_FILE = 'model.onnx';
const SLOTS_FILE = 'slots.json';

export interface VersionGraph {
  readonly model: Uint8Array;
  /** External data of the graph by file name. */
  readonly data: ReadonlyMap<string, Uint8Array>;
  /** Names the model in errors. */
  readonly source: string;
}

export async function readVersionGraph(
  repository: Repository,
  manifest: Manifest,
): Promise<VersionGraph> {
  const { bundle, version } = manifest;
  const model = await repository.readManifestFile(manifest, MODEL_FILE);
  const source = `${bundle} ${version}: ${MODEL_FILE}`;
  const data = new Map<string, Uint8Array>();
  // A process listens before it reads a version.
  const { listExternalFiles } = await import('../../proto/onnx-external.ts');
  for (const name of listLocations(model, listExternalFiles)) {
    if (!manifest.files.some(({ path }) => path === name)) {
      throw new CubeError(
        'NOT_FOUND',
        `${source} has tensors in the file ${quoteInput(name)}, which the version does not have`,
      );
    }
    data.set(name, await repository.readManifestFile(manifest, name));
  }
  return { model, data, source };
}

/** Lists nothing for bytes that are not an ONNX model: onnxruntime says what is wrong with them. */
function listLocations(
  model: Uint8Array,
  list: (model: Uint8Array, source: string) => string[],
): string[] {
  try {
    return list(model, MODEL_FILE);
  } catch {
    return [];
  }
}

export async function readVersionSlots(
  repository: Repository,
  manifest: Manifest,
): Promise<SlotSpec> {
  const { bundle, version } = manifest;
  const bytes = await repository.readManifestFile(manifest, SLOTS_FILE);
  return readSlotSpec(
    JsonReader.parse(new TextDecoder().decode(bytes), `${bundle} ${version}: ${SLOTS_FILE}`),
  );
}

/**
 * Checks that the slot spec computes the same keys as the manifest, with which the tables were
 * built.
 */
export function checkKeysMatch(
  { hash, slots }: Pick<FeatureSpec, 'hash' | 'slots'>,
  manifest: Manifest,
): void {
  const isSameHash =
    hash.scheme === manifest.hash.scheme &&
    hash.seed === manifest.hash.seed &&
    hash.modulo === manifest.hash.modulo;
  const isSameSlots =
    slots.length === manifest.slots.length &&
    slots.every((slot, i) => areEqualKeyRules(slot, manifest.slots[i]!));
  if (isSameHash && isSameSlots) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${manifest.bundle} ${manifest.version}: the ${isSameHash ? 'slots' : 'hash'} in slots.json ` +
      'and manifest.json differ; build the version again',
  );
}

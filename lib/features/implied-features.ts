/**
 * The features of a model that was pruned without features.json: requests give the inputs of the
 * graph itself. Every column of an ids input is a slot, every id is a key, and dense values are
 * used unchanged.
 */

import { CubeError } from '../core/errors.ts';
import type { DenseInput, FeatureSpec, GraphPort, SlotSpec } from '../core/slots.ts';
import { withBagPooling } from '../core/slots.ts';

/** A spec that has features, its own or implied ones. */
interface CompleteSlotSpec extends SlotSpec {
  readonly features: FeatureSpec;
}

/**
 * Adds the features that the graph implies, unless the spec has its own. @throws CubeError
 * UNSUPPORTED saying why not
 */
export function addImpliedFeatures(spec: SlotSpec, source: string): CompleteSlotSpec {
  if (spec.features !== undefined) {
    return { ...spec, features: withBagPooling(spec.features, spec.embeddings) };
  }
  const { ids, graph } = spec;
  const reject = (why: string): never => {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: slots.json has no features, and ${why}; ` +
        `prune the model with --features features.json`,
    );
  };
  if (ids === undefined || graph === undefined) {
    return reject(
      'it does not list the ids inputs of the graph either (an earlier prune-model wrote it)',
    );
  }
  const { inputs, outputs } = graph;
  // The first float output stands for the score; responses have all of them.
  const output = outputs.find(({ dtype }) => /^float(32|16)$/.test(dtype));
  if (output === undefined)
    return reject(`its graph has no float output, only ${formatNames(outputs)}`);
  const features: FeatureSpec = {
    hash: { scheme: 'raw', seed: 0n, modulo: 0n },
    slots: ids
      .flatMap(({ input, columns }) => nameColumns(input, columns))
      .map((name, index) => ({ name, index })),
    dense: planDenseInput(inputs, reject),
    click: { output: output.name, column: 0 },
  };
  const embeddings = spec.embeddings.map((embedding) => ({
    ...embedding,
    slots: (embedding.columns ?? []).map((column) => `${embedding.ids}[${column}]`),
  }));
  return {
    ...spec,
    features: withBagPooling(features, embeddings),
    ids: ids.map((input) => ({ ...input, slots: nameColumns(input.input, input.columns) })),
    embeddings,
  };
}

function nameColumns(input: string, columns: number): string[] {
  return Array.from({ length: columns }, (_, column) => `${input}[${column}]`);
}

/** The features of the dense inputs, in their order, without scaling. */
function planDenseInput(
  inputs: readonly GraphPort[],
  reject: (why: string) => never,
): DenseInput | undefined {
  const [first] = inputs;
  if (first === undefined) return undefined;
  const features = inputs.flatMap(({ name, dtype, shape }) => {
    const width = shape?.[1];
    if (!/^float(32|16)$/.test(dtype) || shape?.length !== 2 || width === undefined || width < 1) {
      const dims = shape?.join(', ') ?? 'unknown';
      return reject(`its input ${name} is ${dtype} [${dims}], not float32 [batch, features]`);
    }
    return nameColumns(name, width).map((feature) => ({
      name: feature,
      missing: 0,
      log: false,
      shift: 0,
      scale: 1,
      ...(name === first.name ? {} : { input: name }),
    }));
  });
  return { input: first.name, features };
}

function formatNames(ports: readonly GraphPort[]): string {
  return ports.map(({ name }) => JSON.stringify(name)).join(', ') || 'nothing';
}

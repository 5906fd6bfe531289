/**
 * A model that was pruned without features.json takes what its graph took: ids by the names of its ids inputs, and dense inputs
 * as they are. Every column of ids is then a slot of its own, every id is a key.
 */
import { withBagPooling } from '../../lib/core/bag-slots.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { DenseInput, FeatureSpec, GraphPort, SlotSpec } from '../../lib/core/slots.ts';

/** The spec with the features that the graph implies, beside its own when it has them. @throws CubeError UNSUPPORTED saying why not */
export function withFeatures(spec: SlotSpec, source: string): SlotSpec {
  if (spec.features !== undefined) {
    return { ...spec, features: withBagPooling(spec.features, spec.embeddings) };
  }
  const { ids, graph } = spec;
  const refuse = (why: string): never => {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: slots.json has no features, and ${why}; prune the model with --features features.json`,
    );
  };
  if (ids === undefined || graph === undefined) {
    return refuse('nothing else says how rows become keys (an earlier prune-model wrote it)');
  }
  const { inputs, outputs } = graph;
  // All of floats are answered; the first stands for the score.
  const output = outputs.find(({ dtype }) => /^float(32|16)$/.test(dtype));
  if (output === undefined) return refuse(`its graph gives no floats, only ${namesOf(outputs)}`);
  const features: FeatureSpec = {
    hash: { scheme: 'raw', seed: 0n, modulo: 0n },
    slots: ids
      .flatMap(({ input, columns }) => slotsOf(input, columns))
      .map((name, index) => ({ name, index })),
    dense: denseOf(inputs, refuse),
    click: { output: output.name, column: 0 },
  };
  const embeddings = spec.embeddings.map((embedding) => ({
    ...embedding,
    slots: (embedding.columns ?? []).map((column) => `${embedding.ids}[${column}]`),
  }));
  return {
    ...spec,
    features: withBagPooling(features, embeddings),
    ids: ids.map((input) => ({ ...input, slots: slotsOf(input.input, input.columns) })),
    embeddings,
  };
}

function slotsOf(input: string, columns: number): string[] {
  return Array.from({ length: columns }, (_, column) => `${input}[${column}]`);
}

/** The dense inputs as they are, one behind another: nothing is scaled. */
function denseOf(
  inputs: readonly GraphPort[],
  refuse: (why: string) => never,
): DenseInput | undefined {
  const [first] = inputs;
  if (first === undefined) return undefined;
  const features = inputs.flatMap(({ name, dtype, shape }) => {
    const width = shape?.[1];
    if (!/^float(32|16)$/.test(dtype) || shape?.length !== 2 || width === undefined || width < 1) {
      const dims = shape?.join(', ') ?? 'unknown';
      return refuse(`its input ${name} is ${dtype} [${dims}], not float32 [batch, features]`);
    }
    return slotsOf(name, width).map((feature) => ({
      ...{ name: feature, missing: 0, log: false, shift: 0, scale: 1 },
      ...(name === first.name ? {} : { input: name }),
    }));
  });
  return { input: first.name, features };
}

function namesOf(ports: readonly GraphPort[]): string {
  return ports.map(({ name }) => JSON.stringify(name)).join(', ') || 'nothing';
}

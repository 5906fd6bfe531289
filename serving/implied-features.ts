/**
 * A model that was pruned without features.json takes what its graph took: ids by the names of its ids inputs, and one dense input
 * as it is. Every column of ids is then a slot of its own, every id is a key.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { DenseInput, FeatureSpec, GraphPort, SlotSpec } from '../lib/core/slots.ts';

/** The spec with the features that the graph implies; as it is when it has its own. @throws CubeError UNSUPPORTED saying why not */
export function withFeatures(spec: SlotSpec, source: string): SlotSpec {
  if (spec.features !== undefined) return spec;
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
  if (inputs.length > 1) {
    return refuse(`its graph takes ${namesOf(inputs)}, of which one can be served`);
  }
  const [output, other] = outputs;
  if (output === undefined || other !== undefined) {
    return refuse(`its graph gives ${namesOf(outputs)}: choose one with prune-model --fetch, or`);
  }
  const features: FeatureSpec = {
    hash: { scheme: 'raw', seed: 0n, modulo: 0n },
    slots: ids
      .flatMap(({ input, columns }) => slotsOf(input, columns))
      .map((name, index) => ({ name, index })),
    dense: inputs[0] && denseOf(inputs[0], refuse),
    click: { output: output.name, column: 0 },
  };
  return {
    ...spec,
    features,
    ids: ids.map((input) => ({ ...input, slots: slotsOf(input.input, input.columns) })),
    embeddings: spec.embeddings.map((embedding) => ({
      ...embedding,
      slots: (embedding.columns ?? []).map((column) => `${embedding.ids}[${column}]`),
    })),
  };
}

function slotsOf(input: string, columns: number): string[] {
  return Array.from({ length: columns }, (_, column) => `${input}[${column}]`);
}

function denseOf({ name, dtype, shape }: GraphPort, refuse: (why: string) => never): DenseInput {
  const width = shape?.[1];
  if (dtype !== 'float32' || shape?.length !== 2 || width === undefined || width < 1) {
    const dims = shape?.join(', ') ?? 'unknown';
    return refuse(`its input ${name} is ${dtype} [${dims}], not float32 [batch, features]`);
  }
  const features = slotsOf(name, width).map((feature) => ({
    ...{ name: feature, missing: 0, log: false, shift: 0, scale: 1 },
  }));
  return { input: name, features };
}

function namesOf(ports: readonly GraphPort[]): string {
  return ports.map(({ name }) => JSON.stringify(name)).join(', ') || 'nothing';
}

/**
 * Optional inputs of a graph: inputs that have an initializer as their default. onnxruntime for
 * Node ignores values for them, so they become usual inputs, and callers add the defaults.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { Tensor } from '../lib/core/tensor.ts';
import { OnnxGraph } from './onnx-graph.ts';

export interface SeparateDefaults {
  /** The model without the initializers. */
  readonly model: Uint8Array;
  readonly defaults: ReadonlyMap<string, Tensor>;
}

/**
 * @param names the inputs that may be absent
 * @param source names the model in errors
 * @throws CubeError INVALID_ARGUMENT when an input has no default of float32 in the file
 */
export function separateDefaults(
  model: Uint8Array,
  names: readonly string[],
  source: string,
): SeparateDefaults {
  const defaults = new Map<string, Tensor>();
  if (names.length === 0) return { model, defaults };
  const graph = new OnnxGraph(model, source);
  const removed = new Map<number, readonly Uint8Array[]>();
  for (const name of names) {
    const found = graph.defaults.get(name);
    if (found === undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${source}: input ${name} is optional in config.pbtxt, but the graph has no default for ` +
          'it (an input that is also an initializer of float32); remove optional',
      );
    }
    const { dims: shape, values, position } = found;
    defaults.set(name, { dataType: 'FP32', shape, data: new Uint8Array(values.buffer) });
    removed.set(position, []);
  }
  return { model: graph.write({ nodes: removed, firstNodes: [], initializers: [] }), defaults };
}

/**
 * Runs a whole graph with the largest key of each slot. The tables are inside the graph, so only a
 * run shows that a modulo is larger than the table of its slot.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { getModulo, type SlotSpec, type TrainedFeatures } from '../../lib/core/slots.ts';
import type { OnnxModel, OnnxTensor } from '../../lib/platform/onnx.ts';
import { ARRAY_TYPES, type OnnxDtype } from '../../lib/platform/onnx-arrays.ts';

/** @throws CubeError INVALID_ARGUMENT naming a slot whose largest key fails in the graph */
export async function checkLargestKeys(
  model: OnnxModel,
  source: string,
  spec: SlotSpec,
  features: TrainedFeatures,
): Promise<void> {
  const largest = new Map(
    features.slots.flatMap((slot) => {
      const modulo = getModulo(features.hash, slot);
      return modulo === 0n ? [] : [[slot.name, modulo - 1n] as const];
    }),
  );
  const run = async (keys: ReadonlyMap<string, bigint>): Promise<string | undefined> => {
    try {
      await model.runTensors(createRow(model, spec, keys), [features.click.output]);
      return undefined;
    } catch (error) {
      return CubeError.from(error).message;
    }
  };
  // A graph that fails without any key needs other values, so its runs say nothing about keys.
  if ((await run(new Map())) !== undefined || (await run(largest)) === undefined) return;
  for (const [name, key] of largest) {
    const problem = await run(new Map([[name, key]]));
    if (problem === undefined) continue;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `features.json does not match ${source}: its slot ${name} has modulo ${key + 1n}, but the ` +
        `graph fails with its key ${key}; give the slot the "modulo" that training uses ` +
        `(${problem})`,
    );
  }
}

/** A batch of one row: the keys given, and zeros. */
function createRow(
  { inputs }: OnnxModel,
  { ids = [] }: SlotSpec,
  keys: ReadonlyMap<string, bigint>,
): Record<string, OnnxTensor> {
  return Object.fromEntries(
    inputs.map(({ name, dtype, shape }): [string, OnnxTensor] => {
      const [, columns] = shape;
      const data = new ARRAY_TYPES[dtype as OnnxDtype](Number(columns ?? 1));
      const { slots = [] } = ids.find(({ input }) => input === name) ?? {};
      for (const [column, slot] of slots.entries()) {
        const key = keys.get(slot) ?? 0n;
        if (data instanceof BigInt64Array) data[column] = BigInt.asIntN(64, key);
        else data[column] = Number(key);
      }
      const dims = columns === undefined ? [1] : [1, data.length];
      return [name, { dtype: dtype as OnnxDtype, data, dims }];
    }),
  );
}

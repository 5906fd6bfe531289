/** Slots whose values an input of the graph takes as bags: the pooling that the graph had is theirs. */
import { CubeError } from './errors.ts';
import type { EmbeddingInput, FeatureSpec } from './slots.ts';

type BagInput = Pick<EmbeddingInput, 'input' | 'slots' | 'bags'>;

/**
 * The spec with the pooling of every slot that feeds bags.
 * @throws CubeError INVALID_ARGUMENT when a slot has another one, from features.json or from another input
 */
export function withBagPooling(spec: FeatureSpec, inputs: readonly BagInput[]): FeatureSpec {
  const poolings = new Map(spec.slots.map(({ name, pooling }) => [name, pooling]));
  for (const { input, slots, bags } of inputs) {
    if (bags === undefined) continue;
    for (const slot of slots) {
      const known = poolings.get(slot);
      if (known !== undefined && known !== bags.pooling) {
        throw new CubeError(
          'INVALID_ARGUMENT',
          `slot ${slot}: its pooling is ${known}, the graph's input ${JSON.stringify(input)} takes the ${bags.pooling} of its bags`,
        );
      }
      poolings.set(slot, bags.pooling);
    }
  }
  const slots = spec.slots.map((slot) => {
    const pooling = poolings.get(slot.name);
    return pooling === undefined ? slot : { ...slot, pooling };
  });
  return { ...spec, slots };
}

/**
 * Selects the model outputs that a general model service request fetches, by name or alias, in the
 * requested order.
 */

import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import type { OutputTensor } from '../../proto/general-tensor.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { Prediction } from '../engine/prediction.ts';

/** Names of the click output in the examples of Paddle Serving. */
const CLICK_ALIASES = ['predict', 'prob'];

export class PaddleOutputs {
  readonly #names: readonly string[];
  readonly #click: string;

  constructor({ plan, pool }: LoadedBundle) {
    this.#click = plan.clickOutput;
    this.#names = pool.outputs.map(({ name }) => name);
  }

  /**
   * @param fetchNames empty: the click output
   * @returns a function that extracts these outputs from a prediction
   * @throws CubeError INVALID_ARGUMENT for a name that is not an output of the model
   */
  select(
    fetchNames: readonly string[],
    aliases: ReadonlyMap<string, string>,
  ): (prediction: Prediction) => OutputTensor[] {
    const requested = fetchNames.length === 0 ? [this.#click] : fetchNames;
    const selected = requested.map((aliasName) => ({
      aliasName,
      name: this.#resolve(aliasName, aliases),
    }));
    return ({ outputs, rowCount }) =>
      selected.map(({ name, aliasName }) => {
        const output = outputs.find((one) => one.name === name);
        const { data, width } = requireDefined(output, `the output ${name}`);
        const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
        return { name, aliasName, dataType: 'FP32', shape: [rowCount, width], data: bytes };
      });
  }

  #resolve(requested: string, aliases: ReadonlyMap<string, string>): string {
    for (const name of [requested, aliases.get(requested)]) {
      if (name !== undefined && this.#names.includes(name)) return name;
    }
    if (CLICK_ALIASES.includes(requested)) return this.#click;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `fetch_var_names: the model has no output ${quoteInput(requested)}; ` +
        `its outputs are ${this.#names.join(', ')}`,
    );
  }
}

/** What a caller of the general model service fetches: the model's outputs, by name or alias, in the order asked for. */
import { CubeError } from '../../lib/core/errors.ts';
import type { OutputTensor } from '../../proto/general-tensor.ts';
import type { Prediction } from '../engine/predictor.ts';
import type { LoadedBundle } from '../models/bundle.ts';

/** What the original's examples call the click output, whatever the graph calls it. */
const CLICK_ALIASES = ['predict', 'prob'];

export class PaddleFetch {
  readonly #names: readonly string[];
  readonly #click: string;

  constructor({ plan, pool }: LoadedBundle) {
    this.#click = plan.clickOutput;
    this.#names = pool.outputs.map(({ name }) => name);
  }

  /**
   * @param wanted none: the click output
   * @returns what takes those outputs out of a prediction
   * @throws CubeError INVALID_ARGUMENT for a name that the model does not give
   */
  choose(
    wanted: readonly string[],
    aliases: ReadonlyMap<string, string>,
  ): (prediction: Prediction) => OutputTensor[] {
    const asked = wanted.length === 0 ? [this.#click] : wanted;
    const chosen = asked.map((aliasName) => ({
      aliasName,
      name: this.#resolve(aliasName, aliases),
    }));
    return ({ outputs, rowCount }) =>
      chosen.map(({ name, aliasName }) => {
        const { data, width } = outputs.find((output) => output.name === name)!;
        return { name, aliasName, shape: [rowCount, width], float32: data };
      });
  }

  #resolve(asked: string, aliases: ReadonlyMap<string, string>): string {
    for (const name of [asked, aliases.get(asked)]) {
      if (name !== undefined && this.#names.includes(name)) return name;
    }
    if (CLICK_ALIASES.includes(asked)) return this.#click;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `fetch_var_names: the model gives no ${JSON.stringify(asked.slice(0, 128))}, but ${this.#names.join(', ')}`,
    );
  }
}

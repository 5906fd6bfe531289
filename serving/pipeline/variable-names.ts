/**
 * The names of a model's variables in an op: aliases (of serving_client_conf.prototxt) and the
 * outputs to fetch.
 */
import { CubeError } from '../../lib/core/errors.ts';

export interface VariableNamesOptions {
  /** Alias → name in the model. */
  readonly feeds?: ReadonlyMap<string, string>;
  /** Alias → name in the model. */
  readonly fetches?: ReadonlyMap<string, string>;
  /** Outputs to return, by alias or name; default: all. */
  readonly fetchList?: readonly string[];
}

export class VariableNames {
  /** Names in the model of the outputs to fetch; empty: all. */
  readonly requestedOutputs: readonly string[];
  readonly #feeds: ReadonlyMap<string, string>;
  readonly #aliases: ReadonlyMap<string, string>;
  /** As given: aliases or names. */
  readonly fetchList: readonly string[];

  constructor({ feeds = new Map(), fetches = new Map(), fetchList = [] }: VariableNamesOptions) {
    this.#feeds = feeds;
    this.fetchList = fetchList;
    this.#aliases = new Map([...fetches].map(([alias, name]) => [name, alias]));
    this.requestedOutputs = fetchList.map((name) => fetches.get(name) ?? name);
  }

  /** Whether an output to fetch has another name in the model. */
  get hasAliases(): boolean {
    return this.fetchList.some((name, at) => name !== this.requestedOutputs[at]);
  }

  toInput(alias: string): string {
    return this.#feeds.get(alias) ?? alias;
  }

  /** Keeps the outputs to fetch. @throws CubeError NOT_FOUND when the model has no such output */
  selectOutputs<T>(values: Readonly<Record<string, T>>): Record<string, T> {
    if (this.fetchList.length === 0) {
      return Object.fromEntries(
        Object.entries(values).map(([name, value]) => [this.#aliases.get(name) ?? name, value]),
      );
    }
    return Object.fromEntries(
      this.fetchList.map((key, at) => {
        const value = values[this.requestedOutputs[at] ?? key] ?? values[key];
        if (value !== undefined) return [key, value];
        const known = Object.keys(values).join(', ');
        throw new CubeError(
          'INVALID_ARGUMENT',
          `the model has no output ${key} (outputs: ${known}); correct the fetch list`,
        );
      }),
    );
  }
}

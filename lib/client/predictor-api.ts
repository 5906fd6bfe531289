/**
 * The SDK of Paddle Serving's C++ clients: reads predictors.prototxt, chooses a variant of a
 * predictor by weight, and calls its servers.
 */
import { join } from 'node:path';
import { CubeError } from '../core/errors.ts';
import { suggestNames } from '../core/nearest-name.ts';
import { systemClock, type TimerClock } from '../platform/clock.ts';
import { readText } from '../platform/files.ts';
import type { Credentials } from '../rpc/credentials.ts';
import type { ConcurrencyLimitPolicy } from './call-policy.ts';
import type { ClientStats } from './client-stats.ts';
import { type NamingOptions, type NamingService, openNamingService } from './naming.ts';
import type { ConnectedVariant } from './predictor.ts';
import { Predictor } from './predictor.ts';
import { chooseVariant, connectVariant } from './predictor-variants.ts';
import { type IgnoredField, type PredictorConf, parsePredictorsConf } from './predictors-conf.ts';
import type { ClientLogger } from './replica.ts';

export interface PredictorApiOptions {
  /** Called when a name of servers can no longer be resolved; its previous servers stay. */
  readonly onInvalid?: (error: CubeError) => void;
  /** Logs when a server fails and when it recovers. */
  readonly logger?: ClientLogger;
  /** API key of every call, and whether connections use TLS. Default: neither. */
  readonly credentials?: Credentials;
  /**
   * Split requests with more than `package_size` rows into at most `max_channel_per_request` parts,
   * which different servers, and versions, may answer. Paddle's SDK never split requests of the
   * general model. Default false.
   */
  readonly splitRequests?: boolean;
  /** What to do when servers are at their adaptive limits of calls in flight. Default prefer. */
  readonly concurrencyLimit?: ConcurrencyLimitPolicy;
  /** Returns the addresses of a host for `dns://`. Default: the system's resolver. */
  readonly resolve?: NamingOptions['resolve'];
  readonly clock?: TimerClock;
}

/** The counters of one variant. */
export interface VariantStats extends ClientStats {
  readonly predictor: string;
  readonly tag: string;
}

interface Endpoint {
  readonly conf: PredictorConf;
  /** Index = variant. */
  readonly variants: readonly ConnectedVariant[];
}

const FILE_BYTES_MAX = 4 << 20;

export class PredictorApi {
  /** The fields of the file that have no effect. */
  readonly ignored: readonly IgnoredField[];
  readonly #path: string;
  readonly #endpoints: ReadonlyMap<string, Endpoint>;
  readonly #isSplitting: boolean;
  #isDestroyed = false;

  private constructor(
    path: string,
    endpoints: ReadonlyMap<string, Endpoint>,
    ignored: readonly IgnoredField[],
    isSplitting: boolean,
  ) {
    this.#path = path;
    this.#endpoints = endpoints;
    this.ignored = ignored;
    this.#isSplitting = isSplitting;
  }

  /**
   * Reads the file `file` in the folder `path`. Connections are opened by the first calls.
   * @throws CubeError INVALID_ARGUMENT with file, line and column; NOT_FOUND; UNAVAILABLE when a
   *   host cannot be resolved
   */
  static async create(
    path: string,
    file: string = 'predictors.prototxt',
    options: PredictorApiOptions = {},
  ): Promise<PredictorApi> {
    const fullPath = join(path, file);
    const text = readText(fullPath, FILE_BYTES_MAX);
    const { predictors, ignored } = parsePredictorsConf(text, fullPath);
    const endpoints = new Map<string, Endpoint>();
    for (const conf of predictors) {
      const variants: ConnectedVariant[] = [];
      for (const variant of conf.variants) {
        const naming = await openCluster(conf.name, variant, options);
        variants.push(connectVariant(conf.service, variant, naming, options));
      }
      endpoints.set(conf.name, { conf, variants });
    }
    return new PredictorApi(fullPath, endpoints, ignored, options.splitRequests ?? false);
  }

  get predictorNames(): string[] {
    return [...this.#endpoints.keys()];
  }

  /**
   * Chooses a variant by weight; all calls of the predictor go to it. `tag` of the predictor and of
   * its responses names the variant.
   * @throws CubeError NOT_FOUND, or STOPPING after `destroy`
   */
  fetchPredictor(name: string): Predictor {
    if (this.#isDestroyed) throw new CubeError('STOPPING', `${this.#path}: destroyed`);
    const endpoint = this.#endpoints.get(name);
    if (endpoint === undefined) {
      const hint = suggestNames(name, this.#endpoints.keys());
      const text = `${this.#path} has no predictor ${JSON.stringify(name)}; ${hint}`;
      throw new CubeError('NOT_FOUND', text);
    }
    const { conf, variants } = endpoint;
    const variant = variants[chooseVariant(conf.weights, Math.random())];
    if (variant === undefined) throw new CubeError('INTERNAL', `${name}: no variant`);
    return new Predictor(name, variant, this.#isSplitting);
  }

  /** Refuses later calls of the predictor; its calls in flight go on. */
  freePredictor(predictor: Predictor): void {
    predictor.free();
  }

  fetch_predictor(name: string): Predictor {
    return this.fetchPredictor(name);
  }

  free_predictor(predictor: Predictor): void {
    this.freePredictor(predictor);
  }

  /** The counters of each variant since `create`. */
  stats(): VariantStats[] {
    return [...this.#endpoints.values()].flatMap(({ conf, variants }) =>
      variants.map(({ conf: { tag }, client }) => {
        return { predictor: conf.name, tag, ...client.stats };
      }),
    );
  }

  /** Fails the calls in flight and closes all connections. */
  destroy(): void {
    this.#isDestroyed = true;
    for (const { variants } of this.#endpoints.values()) {
      for (const { client } of variants) client.close();
    }
  }
}

async function openCluster(
  predictor: string,
  { tag, cluster, loadBalancer }: PredictorConf['variants'][number],
  { onInvalid = () => undefined, resolve, clock = systemClock }: PredictorApiOptions,
): Promise<NamingService> {
  const requireWeights = loadBalancer === 'wrr' || loadBalancer === 'wr';
  const options = { clock, onInvalid, requireWeights, ...(resolve && { resolve }) };
  try {
    return await openNamingService(cluster, options);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    const text = `predictor ${predictor}, variant ${tag}: cluster: ${message}`;
    throw new CubeError(code, text, { cause: error });
  }
}

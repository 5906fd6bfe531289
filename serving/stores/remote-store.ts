/** The REMOTE store: the shards of a fleet, through `CubeClient`. */
import { CubeClient } from '../../lib/client/cube-client.ts';
import { CubeConf, isCubeConf } from '../../lib/client/cube-conf.ts';
import { FleetFile } from '../../lib/client/fleet-file.ts';
import type { RouteOptions } from '../../lib/client/fleet-routes.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { LookupGroup, LookupSummary } from '../../lib/core/lookup-group.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { versionKey } from '../../lib/core/names.ts';
import type { TraceSpan } from '../../lib/core/trace-span.ts';
import { readText } from '../../lib/platform/files.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { Credentials } from '../../lib/rpc/credentials.ts';
import { type EmbeddingStore, makeAbsentError, type ServerStats } from './embedding-store.ts';
import type { RemoteChoice } from './store-choice.ts';

/** Wait of `prepare` for every shard to answer whether it has the version. */
const PREPARE_TIMEOUT_MS = 5_000;
const FLEET_BYTES_MAX = 16 << 20;

export class RemoteStore implements EmbeddingStore {
  readonly kind = 'remote';
  readonly #client: CubeClient;
  readonly #prepared = new Set<string>();
  #isClosed = false;

  /** Takes ownership of the client: `close` closes it. */
  constructor(client: CubeClient) {
    this.#client = client;
  }

  /**
   * Opens a store over the fleet of a fleet.json or a cube.conf, and follows changes of the file.
   * @throws CubeError when the file cannot be read, or a policy is invalid
   */
  static async open(choice: RemoteChoice, logger: Logger): Promise<RemoteStore> {
    const { checksum = true } = choice;
    const credentials = choice.credentials && new Credentials(choice.credentials);
    const routes = await openRoutes(choice, logger);
    return new RemoteStore(new CubeClient({ ...routes, checksum, logger, credentials }));
  }

  get servers(): ServerStats {
    const { replicas, retries, backups, ...stats } = this.#client.stats();
    return {
      circuitsOpen: replicas.filter(({ circuitOpen }) => circuitOpen).length,
      retries,
      backups,
      refusals: stats.retryBudgetRefusals + stats.backupBudgetRefusals,
      replicas,
    };
  }

  async prepare(manifest: Manifest): Promise<void> {
    const { loaded, missing } = await this.#client.checkLoaded(manifest, PREPARE_TIMEOUT_MS);
    if (!loaded) {
      throw new CubeError(
        'NOT_READY',
        `${manifest.bundle} ${manifest.version} is not on every shard: ${missing}`,
      );
    }
    this.#prepared.add(versionKey(manifest));
  }

  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
    span?: TraceSpan,
  ): Promise<LookupSummary> {
    if (this.#isClosed) throw new CubeError('STOPPING', 'the remote store is closed');
    if (!this.#prepared.has(versionKey(manifest))) throw makeAbsentError(manifest, this.#prepared);
    try {
      return await this.#client.lookup(manifest, groups, timeoutMs, { span });
    } catch (error) {
      throw toOwnError(error);
    }
  }

  async retire(manifest: Manifest): Promise<void> {
    this.#prepared.delete(versionKey(manifest));
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#client.close();
  }
}

/** The caller of serving must not read that its own key is refused. */
function toOwnError(error: unknown): unknown {
  const { code, message, details } = CubeError.from(error);
  if (code !== 'DENIED' && code !== 'UNAUTHENTICATED') return error;
  const text = `shard servers refuse this process: ${message}; check --shard-key-file`;
  return new CubeError('UNAVAILABLE', text, { cause: error, details });
}

/** A cube.conf is an array of dicts, each with its own policy; a fleet.json is an object. */
async function openRoutes(
  { fleetPath, policy }: RemoteChoice,
  logger: Logger,
): Promise<Pick<RouteOptions, 'fleet' | 'policy'>> {
  const onInvalid = (error: CubeError): void =>
    logger.warn(
      { error: error.message },
      'the changed fleet file is invalid; the previous fleet stays in use',
    );
  if (isCubeConf(readText(fleetPath, FLEET_BYTES_MAX))) {
    const conf = await CubeConf.open(fleetPath, { onInvalid });
    const mergePolicy = (dict: string) => ({ ...conf.getPolicy(dict), ...policy });
    return { fleet: () => conf.fleet(), policy: mergePolicy };
  }
  const fleet = new FleetFile(fleetPath, { onInvalid });
  return { fleet: () => fleet.current(), ...(policy !== undefined && { policy }) };
}

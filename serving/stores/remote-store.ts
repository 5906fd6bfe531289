/** The REMOTE store: the shards of a fleet, through `CubeClient`. */
import { CubeClient } from '../../lib/client/cube-client.ts';
import { CubeConf } from '../../lib/client/cube-conf.ts';
import { FleetFile } from '../../lib/client/fleet-file.ts';
import type { RouteOptions } from '../../lib/client/fleet-routes.ts';
import type { LookupGroup, LookupSummary } from '../../lib/client/lookup-group.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { readText } from '../../lib/platform/files.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { EmbeddingStore } from './embedding-store.ts';
import type { RemoteChoice } from './store-choice.ts';

/** How long `prepare` waits for every shard to answer whether it holds a version. */
const HOLDS_TIMEOUT_MS = 5_000;
const FLEET_BYTES_MAX = 16 << 20;

export class RemoteStore implements EmbeddingStore {
  readonly kind = 'remote';
  readonly #client: CubeClient;
  readonly #prepared = new Set<string>();
  #closed = false;

  /** @param client owned by the store from here on: `close` closes it */
  constructor(client: CubeClient) {
    this.#client = client;
  }

  /**
   * A store over the fleet that a fleet.json or a cube.conf names; both are followed while they change.
   * @throws CubeError when the file cannot be read, or a policy is none
   */
  static async open(choice: RemoteChoice, logger: Logger): Promise<RemoteStore> {
    const { checksum = false } = choice;
    const routes = await openRoutes(choice, logger);
    return new RemoteStore(new CubeClient({ ...routes, checksum, logger }));
  }

  async prepare(manifest: Manifest): Promise<void> {
    const { held, missing } = await this.#client.holds(manifest, HOLDS_TIMEOUT_MS);
    if (!held) {
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
  ): Promise<LookupSummary> {
    if (this.#closed) throw new CubeError('STOPPING', 'this store is closed');
    if (!this.#prepared.has(versionKey(manifest))) {
      throw new CubeError(
        'VERSION_ABSENT',
        `${manifest.bundle} ${manifest.version} was not prepared in this store`,
      );
    }
    return this.#client.lookup(manifest, groups, timeoutMs);
  }

  async retire(manifest: Manifest): Promise<void> {
    this.#prepared.delete(versionKey(manifest));
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#client.close();
  }
}

/** Cube's file is an array of dicts, each with a policy of its own; ours is an object. */
async function openRoutes(
  { fleetPath, policy }: RemoteChoice,
  logger: Logger,
): Promise<Pick<RouteOptions, 'fleet' | 'policy'>> {
  const onInvalid = (error: CubeError): void =>
    logger.warn({ error: error.message }, 'the changed fleet cannot be used; keeping the old');
  if (readText(fleetPath, FLEET_BYTES_MAX).trimStart().startsWith('[')) {
    const conf = await CubeConf.open(fleetPath, { onInvalid });
    const ofDict = (dict: string) => ({ ...conf.policyOf(dict), ...policy });
    return { fleet: () => conf.fleet(), policy: ofDict };
  }
  const fleet = new FleetFile(fleetPath, { onInvalid });
  return { fleet: () => fleet.current(), ...(policy !== undefined && { policy }) };
}

function versionKey(manifest: Manifest): string {
  return `${manifest.bundle}/${manifest.version}`;
}

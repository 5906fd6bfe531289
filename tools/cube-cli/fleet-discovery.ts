/** Builds a fleet of servers given by address, by asking each which shard it serves. */
import {
  createOriginalServerError,
  isOriginal,
  readServerStatus,
} from '../../lib/client/server-status.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Fleet, Replica } from '../../lib/core/fleet.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';

export class FleetDiscovery {
  readonly #bundle: string;
  readonly #isPinned: boolean;
  /** Servers that did not answer. */
  readonly #silent: Replica[] = [];
  /** Servers of PaddlePaddle Cube, which do not tell their shards. */
  readonly #originals: Replica[] = [];
  readonly #known = new Map<number, Replica[]>();
  #count: number | undefined;
  #failure: unknown;

  /** @param shardNum that of the manifest; undefined to use the number that the servers report */
  constructor(bundle: string, shardNum: number | undefined) {
    this.#bundle = bundle;
    this.#isPinned = shardNum !== undefined;
    this.#count = shardNum;
  }

  /** @throws CubeError WRONG_SHARD, UNSUPPORTED */
  async ask(address: string, credentials: Credentials): Promise<void> {
    const replica = { data: address, control: address, group: 'default' };
    const status = await readServerStatus(address, { credentials }).catch((error: unknown) => {
      this.#failure = error;
      return undefined;
    });
    if (status === undefined) this.#silent.push(replica);
    else if (isOriginal(status)) this.#addOriginal(replica);
    else {
      this.#count ??= status.shardNum;
      if (status.shardNum !== this.#count) {
        throw new CubeError(
          'WRONG_SHARD',
          `${address} serves one of ${status.shardNum} shards, expected ${this.#count} shards`,
        );
      }
      const others = this.#known.get(status.shardIndex) ?? [];
      this.#known.set(status.shardIndex, [...others, replica]);
    }
  }

  /** What is uncertain about the fleet; undefined: nothing. */
  get warning(): string | undefined {
    if (this.#originals.length === 0) return undefined;
    const shards = this.#originals.map(({ data }, shard) => `${data} is shard ${shard}`);
    return (
      'servers of PaddlePaddle Cube do not tell their shards: assuming that ' +
      `${shards.join(', ')}; a key of another shard looks unseen (--cube-conf names shards)`
    );
  }

  /**
   * A server that did not answer is tried for every shard that no other server has; keys of those
   * shards may be unavailable. @throws CubeError when the shards are not known
   */
  createFleet(): Fleet {
    const shards = this.#originals.length > 0 ? this.#listOriginals() : this.#listShards();
    return { bundles: new Map([[this.#bundle, [{ shardNum: shards.length, shards }]]]) };
  }

  #addOriginal(replica: Replica): void {
    if (this.#isPinned) {
      const todo = 'name a --dict, and remove --repository and --file';
      throw createOriginalServerError(replica.data, todo);
    }
    this.#originals.push(replica);
  }

  #listShards(): Replica[][] {
    if (this.#count === undefined) throw this.#failure;
    return Array.from(
      { length: this.#count },
      (_, shard) => this.#known.get(shard) ?? this.#silent,
    );
  }

  /** One server for each shard, in the order given. */
  #listOriginals(): Replica[][] {
    if (this.#known.size === 0 && this.#silent.length === 0) {
      return this.#originals.map((replica) => [replica]);
    }
    const [original] = this.#originals;
    throw createOriginalServerError(
      original?.data ?? '',
      'its shard is not known; pass --cube-conf, which names the servers of each shard',
    );
  }
}

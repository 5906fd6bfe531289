/**
 * One lookup in Redis: groups the keys of a batch by partition, sends one HMGET for each partition
 * (so one round trip to each node), and writes the results. A reply without the partition's marker
 * is ignored.
 */
import { requireDefined } from '../../lib/core/errors.ts';
import { computeShard } from '../../lib/core/keys.ts';
import type { LookupGroup } from '../../lib/core/lookup-group.ts';
import type { Manifest, TableRef } from '../../lib/core/manifest.ts';
import type { RedisArgument } from './redis-connection.ts';
import {
  computeHashSlot,
  countPartitions,
  findPartition,
  MARKER,
  makePartitionKey,
} from './redis-layout.ts';
import type { NodeCommand, RedisNodes } from './redis-nodes.ts';
import { RowOutput } from './row-output.ts';

/** Fields in one command: it blocks its server for about a millisecond. */
const FIELDS_MAX = 2_048;
const KEY_BYTES = 8;

/**
 * A partition's answer for a key: a row, empty for a deleted key, or null when the partition does
 * not have the key.
 */
type Answer = Buffer | null;

/** One HMGET. */
interface PartitionRequest {
  command?: NodeCommand;
  readonly partition: string;
  readonly hashSlot: number;
  readonly args: RedisArgument[];
  /** The index in `answers` of each field's answer. */
  readonly positions: number[];
}

interface PartitionedLayer {
  /** The number of its first partition. */
  readonly first: number;
  readonly partitions: number;
}

/** A version as the REDIS store looks it up: the partitions of all its layers, numbered. */
export class RedisVersion {
  readonly manifest: Manifest;
  /** The keys in Redis, by partition number. */
  readonly partitionKeys: readonly string[];
  /** Their hash slots in a Cluster. */
  readonly hashSlots: readonly number[];
  /** Number of layers of the deepest chain. */
  readonly depth: number;
  /** Table → shard → layers, newest first. */
  readonly #chains = new Map<string, readonly (readonly PartitionedLayer[])[]>();

  constructor(manifest: Manifest) {
    this.manifest = manifest;
    const partitionKeys: string[] = [];
    let depth = 1;
    for (const table of manifest.tables) {
      const chains = table.shards.map((layers) =>
        layers.map((layer) => {
          const partitions = countPartitions(table, layer);
          const first = partitionKeys.length;
          for (let p = 0; p < partitions; p++) {
            partitionKeys.push(makePartitionKey(manifest.bundle, layer.contentId, p));
          }
          return { first, partitions };
        }),
      );
      for (const chain of chains) {
        chain.reverse();
        depth = Math.max(depth, chain.length);
      }
      this.#chains.set(table.name, chains);
    }
    this.partitionKeys = partitionKeys;
    this.hashSlots = partitionKeys.map(computeHashSlot);
    this.depth = depth;
  }

  /**
   * The partitions that may have a key, newest layer first.
   * @param numbers out: at most `depth` partition numbers
   * @returns how many layers the key's shard has
   */
  findPartitions(table: TableRef, low: number, high: number, numbers: Uint32Array): number {
    const chains = requireDefined(this.#chains.get(table.name), 'the layers of a table');
    const chain = chains[computeShard(low, high, chains.length)]!;
    for (let l = 0; l < chain.length; l++) {
      const { first, partitions } = chain[l]!;
      numbers[l] = first + findPartition(low, high, partitions);
    }
    return chain.length;
  }
}

export class RedisLookup {
  /** Why the first unavailable key has no answer. */
  reason: string | undefined;
  readonly #version: RedisVersion;
  readonly #groups: readonly LookupGroup[];
  readonly #tables: readonly TableRef[];
  /**
   * The answers for key i, newest layer first, from index i · depth on; undefined: no answer came.
   */
  readonly #answers: (Answer | undefined)[];
  /** The number of layers of each key's chain. */
  readonly #depths: Uint8Array;
  readonly #requests: PartitionRequest[] = [];

  constructor(version: RedisVersion, groups: readonly LookupGroup[], tables: readonly TableRef[]) {
    this.#version = version;
    this.#groups = groups;
    this.#tables = tables;
    let total = 0;
    for (const { count } of groups) total += count;
    this.#answers = new Array(total * version.depth);
    this.#depths = new Uint8Array(total);
    this.#planRequests();
  }

  /** Settles when every partition has answered or failed; never rejects. */
  async send(nodes: RedisNodes): Promise<void> {
    await Promise.all(this.#requests.map((request) => this.#sendRequest(nodes, request)));
  }

  /** Records that nobody waits for the other answers any more. */
  expire(): void {
    for (const { command } of this.#requests) command?.expire();
  }

  /** Writes rows and outcomes from the answers that came so far. */
  writeResults(): { unseen: number; unavailable: number } {
    let position = 0;
    let unseen = 0;
    let unavailable = 0;
    this.#groups.forEach((group, g) => {
      const output = new RowOutput(group, this.#tables[g]!);
      for (let i = 0; i < group.count; i++) this.#writeResult(position++, output, i);
      unseen += output.unseen;
      unavailable += output.unavailable;
    });
    return { unseen, unavailable };
  }

  #planRequests(): void {
    const open = new Map<number, PartitionRequest>();
    const numbers = new Uint32Array(this.#version.depth);
    let position = 0;
    this.#groups.forEach(({ keys, count }, g) => {
      // A copy: commands may be written after the deadline, when the caller reuses its keys.
      const fields = Buffer.from(new Uint32Array(keys.subarray(0, 2 * count)).buffer);
      for (let i = 0; i < count; i++, position++) {
        const field = fields.subarray(KEY_BYTES * i, KEY_BYTES * (i + 1));
        const low = keys[2 * i]!;
        const high = keys[2 * i + 1]!;
        const depth = this.#version.findPartitions(this.#tables[g]!, low, high, numbers);
        this.#depths[position] = depth;
        for (let l = 0; l < depth; l++) {
          const request = this.#findRequest(open, numbers[l]!);
          request.args.push(field);
          request.positions.push(position * numbers.length + l);
        }
      }
    });
  }

  /** The request of a partition that has room for another field. */
  #findRequest(open: Map<number, PartitionRequest>, number: number): PartitionRequest {
    let request = open.get(number);
    if (request === undefined || request.positions.length === FIELDS_MAX) {
      const partition = this.#version.partitionKeys[number]!;
      const hashSlot = this.#version.hashSlots[number]!;
      request = { partition, hashSlot, args: ['HMGET', partition, MARKER], positions: [] };
      open.set(number, request);
      this.#requests.push(request);
    }
    return request;
  }

  async #sendRequest(nodes: RedisNodes, request: PartitionRequest): Promise<void> {
    const { partition, hashSlot, args, positions } = request;
    const command = nodes.createCommand(partition, hashSlot);
    request.command = command;
    try {
      const values = await command.send<Answer[]>(args);
      if (values[0] === null) {
        this.reason ??=
          `${partition} is missing in redis ${nodes.connection.name}: load the version again ` +
          '(serving load-redis)';
        return;
      }
      for (let i = 0; i < positions.length; i++) this.#answers[positions[i]!] = values[i + 1]!;
    } catch (error) {
      this.reason ??= (error as Error).message;
    }
  }

  /** The newest layer that has the key decides, if all newer layers have answered. */
  #writeResult(position: number, output: RowOutput, i: number): void {
    const from = position * this.#version.depth;
    for (let l = 0; l < this.#depths[position]!; l++) {
      const answer = this.#answers[from + l];
      if (answer === undefined) {
        output.setUnavailable(i);
        return;
      }
      if (answer === null) continue;
      if (answer.length === 0) break;
      if (!output.setRow(i, answer)) {
        this.reason ??= `a row of ${answer.length} bytes in redis, expected ${4 * output.rowWords}`;
        output.setUnavailable(i);
      }
      return;
    }
    output.setUnseen(i);
  }
}

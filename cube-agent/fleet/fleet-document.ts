/**
 * Edits fleet.json. Every change is checked like a reader would check it and replaces the file
 * atomically. Unknown fields are preserved.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { type Fleet, parseFleet, type Replica } from '../../lib/core/fleet.ts';
import { NAME_PATTERN } from '../../lib/core/names.ts';
import { fileExists, readText, replaceFile } from '../../lib/platform/files.ts';

const FLEET_BYTES_MAX = 16 << 20;

/** A replica as written in the file. */
export type ReplicaEntry = Partial<Replica> & { readonly data: string };

interface ShardMapEntry {
  readonly shardNum: number;
  readonly shards: ReplicaEntry[][];
}

interface FleetEntries {
  readonly bundles: Record<string, ShardMapEntry[]>;
}

/** A replica and its position in the fleet. */
export interface ReplicaLocation {
  readonly replica: Replica;
  readonly shardNum: number;
  readonly shard: number;
  /** The other replicas of the same shard. */
  readonly others: readonly Replica[];
}

export class FleetDocument {
  readonly path: string;
  #text: string;
  #fleet: Fleet;

  private constructor(path: string, text: string) {
    this.path = path;
    this.#text = text;
    this.#fleet = parseCheckedFleet(text, path);
  }

  /** @throws CubeError NOT_FOUND; INVALID_ARGUMENT naming the field or the duplicate endpoint */
  static read(path: string): FleetDocument {
    if (!fileExists(path)) {
      const message = `${path} does not exist; create it with "cube-agent fleet init"`;
      throw new CubeError('NOT_FOUND', message);
    }
    return new FleetDocument(path, readText(path, FLEET_BYTES_MAX));
  }

  /** Like `read`, but a missing file gives an empty fleet. */
  static readOrCreate(path: string): FleetDocument {
    return fileExists(path) ? FleetDocument.read(path) : new FleetDocument(path, EMPTY_FLEET);
  }

  get fleet(): Fleet {
    return this.#fleet;
  }

  /** @throws CubeError NOT_FOUND listing the bundles or replicas of the file */
  findReplica(bundle: string, data: string): ReplicaLocation {
    const maps = this.#fleet.bundles.get(bundle);
    if (maps === undefined) {
      const known = [...this.#fleet.bundles.keys()].join(', ') || 'none';
      throw new CubeError('NOT_FOUND', `${this.path} has no bundle ${bundle} (it has: ${known})`);
    }
    for (const { shardNum, shards } of maps) {
      for (const [shard, replicas] of shards.entries()) {
        const replica = replicas.find((candidate) => candidate.data === data);
        if (replica === undefined) continue;
        const others = replicas.filter((candidate) => candidate !== replica);
        return { replica, shardNum, shard, others };
      }
    }
    const known = maps.flatMap(({ shards }) => shards.flat().map((replica) => replica.data));
    const replicas = known.join(', ');
    const message = `${this.path} has no replica ${data} of ${bundle} (it has: ${replicas})`;
    throw new CubeError('NOT_FOUND', message);
  }

  addReplica(
    bundle: string,
    target: { shardNum: number; shard: number },
    entry: ReplicaEntry,
  ): void {
    this.#change(({ bundles }) => {
      const map = bundles[bundle]?.find(({ shardNum }) => shardNum === target.shardNum);
      map?.shards[target.shard]?.push(entry);
    });
  }

  removeReplica(bundle: string, data: string): void {
    this.#change(({ bundles }) => {
      for (const { shards } of bundles[bundle] ?? []) {
        for (const replicas of shards) {
          const at = replicas.findIndex((entry) => entry.data === data);
          if (at >= 0) replicas.splice(at, 1);
        }
      }
    });
  }

  /** Adds a shard map; maps of other shard counts stay. */
  addShardMap(bundle: string, shards: ReplicaEntry[][]): void {
    if (!NAME_PATTERN.test(bundle) || bundle === '__proto__') {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${JSON.stringify(bundle)} is not a valid bundle name`,
      );
    }
    this.#change(({ bundles }) => {
      bundles[bundle] = [...(bundles[bundle] ?? []), { shardNum: shards.length, shards }];
    });
  }

  removeShardMap(bundle: string, shardNum: number): void {
    this.#change(({ bundles }) => {
      const others = (bundles[bundle] ?? []).filter((map) => map.shardNum !== shardNum);
      if (others.length > 0) bundles[bundle] = others;
      else delete bundles[bundle];
    });
  }

  #change(edit: (entries: FleetEntries) => void): void {
    const entries = JSON.parse(this.#text) as FleetEntries;
    edit(entries);
    const text = `${JSON.stringify(entries, null, 2)}\n`;
    const fleet = parseCheckedFleet(text, this.path);
    const now = fileExists(this.path) ? readText(this.path, FLEET_BYTES_MAX) : EMPTY_FLEET;
    if (now !== this.#text) {
      const message = `${this.path} was changed by another process; run the command again`;
      throw new CubeError('CONFLICT', message);
    }
    replaceFile(this.path, text);
    this.#text = text;
    this.#fleet = fleet;
  }
}

const EMPTY_FLEET = '{"format":1,"bundles":{}}';

/**
 * Parses the file and checks that a process serves one shard: a data endpoint occurs once per
 * bundle and as the same shard in all bundles.
 */
function parseCheckedFleet(text: string, source: string): Fleet {
  const fleet = parseFleet(text, source);
  const shardByEndpoint = new Map<string, string>();
  for (const [bundle, maps] of fleet.bundles) {
    const counts = maps.map(({ shardNum }) => shardNum);
    const twice = counts.find((count, i) => counts.indexOf(count) !== i);
    if (twice !== undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${source}: bundle ${bundle} has two shard maps of ${twice} shards`,
      );
    }
    const own = new Set<string>();
    for (const { shardNum, shards } of maps) {
      for (const [shard, { data }] of shards.flatMap((r, i) => r.map((one) => [i, one] as const))) {
        const current = `shard ${shard} of ${shardNum}`;
        const other = shardByEndpoint.get(data) ?? current;
        if (own.has(data) || other !== current) {
          const message = `${data} is listed twice, as ${other} and as ${current} of ${bundle}`;
          throw new CubeError('INVALID_ARGUMENT', `${source}: ${message}`);
        }
        own.add(data);
        shardByEndpoint.set(data, current);
      }
    }
  }
  return fleet;
}

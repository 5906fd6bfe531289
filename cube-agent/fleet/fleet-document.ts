/**
 * fleet.json as a file that is changed: every change is checked as its readers would, then takes the place of the old file whole.
 * Fields that we do not know stay as they are.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { type Fleet, parseFleet, type Replica } from '../../lib/core/fleet.ts';
import { NAME_PATTERN } from '../../lib/core/names.ts';
import { fileExists, readText, replaceFile } from '../../lib/platform/files.ts';

const FLEET_BYTES_MAX = 16 << 20;

/** A replica as it is written down. */
export type ReplicaEntry = Partial<Replica> & { readonly data: string };

interface MapEntry {
  readonly shardNum: number;
  readonly shards: ReplicaEntry[][];
}

interface Entries {
  readonly bundles: Record<string, MapEntry[]>;
}

/** Where a replica stands in the fleet. */
export interface Placed {
  readonly replica: Replica;
  readonly shardNum: number;
  readonly shard: number;
  /** Of the same shard. */
  readonly others: readonly Replica[];
}

export class FleetDocument {
  readonly path: string;
  #text: string;
  #fleet: Fleet;

  private constructor(path: string, text: string) {
    this.path = path;
    this.#text = text;
    this.#fleet = checkedFleet(text, path);
  }

  /** @throws CubeError NOT_FOUND; INVALID_ARGUMENT naming the field, or the endpoint that is in two places */
  static read(path: string): FleetDocument {
    if (!fileExists(path)) {
      const message = `there is no file ${path}; "cube-agent fleet init" begins one`;
      throw new CubeError('NOT_FOUND', message);
    }
    return new FleetDocument(path, readText(path, FLEET_BYTES_MAX));
  }

  /** The same, or a fleet of nobody where the file is absent. */
  static readOrBegin(path: string): FleetDocument {
    return fileExists(path) ? FleetDocument.read(path) : new FleetDocument(path, NOBODY);
  }

  get fleet(): Fleet {
    return this.#fleet;
  }

  /** @throws CubeError NOT_FOUND naming what there is */
  find(bundle: string, data: string): Placed {
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
    const message = `${this.path} has no replica ${data} of ${bundle} (it has: ${known.join(', ')})`;
    throw new CubeError('NOT_FOUND', message);
  }

  addReplica(
    bundle: string,
    place: { shardNum: number; shard: number },
    entry: ReplicaEntry,
  ): void {
    this.#change(({ bundles }) => {
      const map = bundles[bundle]?.find(({ shardNum }) => shardNum === place.shardNum);
      map?.shards[place.shard]?.push(entry);
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

  /** Beside the maps of other shard counts. */
  addMap(bundle: string, shards: ReplicaEntry[][]): void {
    if (!NAME_PATTERN.test(bundle) || bundle === '__proto__') {
      throw new CubeError('INVALID_ARGUMENT', `${JSON.stringify(bundle)} is no name of a bundle`);
    }
    this.#change(({ bundles }) => {
      bundles[bundle] = [...(bundles[bundle] ?? []), { shardNum: shards.length, shards }];
    });
  }

  removeMap(bundle: string, shardNum: number): void {
    this.#change(({ bundles }) => {
      const others = (bundles[bundle] ?? []).filter((map) => map.shardNum !== shardNum);
      if (others.length > 0) bundles[bundle] = others;
      else delete bundles[bundle];
    });
  }

  #change(edit: (entries: Entries) => void): void {
    const entries = JSON.parse(this.#text) as Entries;
    edit(entries);
    const text = `${JSON.stringify(entries, null, 2)}\n`;
    const fleet = checkedFleet(text, this.path);
    const now = fileExists(this.path) ? readText(this.path, FLEET_BYTES_MAX) : NOBODY;
    if (now !== this.#text) {
      const message = `${this.path} was changed by somebody else meanwhile; run this again`;
      throw new CubeError('CONFLICT', message);
    }
    replaceFile(this.path, text);
    this.#text = text;
    this.#fleet = fleet;
  }
}

const NOBODY = '{"format":1,"bundles":{}}';

/** What its schema says, and that a process serves one shard: a data endpoint has one place in a bundle, one shard in all. */
function checkedFleet(text: string, source: string): Fleet {
  const fleet = parseFleet(text, source);
  const places = new Map<string, string>();
  for (const [bundle, maps] of fleet.bundles) {
    const counts = maps.map(({ shardNum }) => shardNum);
    const twice = counts.find((count, i) => counts.indexOf(count) !== i);
    if (twice !== undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${source}: ${bundle} has two maps of ${twice} shards`,
      );
    }
    const own = new Set<string>();
    for (const { shardNum, shards } of maps) {
      for (const [shard, { data }] of shards.flatMap((r, i) => r.map((one) => [i, one] as const))) {
        const place = `shard ${shard} of ${shardNum}`;
        const other = places.get(data) ?? place;
        if (own.has(data) || other !== place) {
          const message = `${source}: ${data} is named twice, as ${other} and as ${place} of ${bundle}`;
          throw new CubeError('INVALID_ARGUMENT', message);
        }
        own.add(data);
        places.set(data, place);
      }
    }
  }
  return fleet;
}

/** What must hold after every write, whoever wrote; and what was seen on the way. */
import { parseManifest } from '../../lib/core/manifest.ts';
import { CANDIDATE_CHANNEL, mayFollow, type RolloutState } from '../../lib/core/rollout.ts';
import { layerPath, seqOf } from '../../lib/repository/layout.ts';
import { BUNDLE } from './host-disk.ts';
import type { MemoryStore, StoreWatch, Writer } from './memory-store.ts';
import type { World } from './world.ts';

interface Pointer {
  readonly seq: number;
  readonly version: string;
  readonly pinned?: boolean;
  readonly quarantines?: string;
  readonly reason: string;
  readonly atCall: number;
}

interface State {
  readonly seq: number;
  readonly state: RolloutState;
  readonly reason: string;
}

export class Rules implements StoreWatch {
  readonly pointers: Map<string, Pointer> = new Map();
  readonly rollouts: Map<string, State> = new Map();
  /** "from>to", with how often each was taken. */
  readonly transitions: Map<string, number> = new Map();
  /** With the number of the world's call by which each was. */
  readonly quarantined: Map<string, number> = new Map();
  readonly #world: World;
  readonly #isStaged: (version: string) => boolean;
  readonly #store: () => MemoryStore;
  readonly #isDamaged: (version: string) => boolean;

  /**
   * @param isStaged whether every replica has ever held it
   * @param isDamaged where it lies
   */
  constructor(
    world: World,
    isStaged: (version: string) => boolean,
    isDamaged: (version: string) => boolean,
    store: () => MemoryStore,
  ) {
    this.#world = world;
    this.#isDamaged = isDamaged;
    this.#isStaged = isStaged;
    this.#store = store;
  }

  put(path: string, bytes: Uint8Array, by: Writer): void {
    const [, kind, name = '', file = ''] = path.split('/');
    const seq = seqOf(file) ?? 0;
    if (kind === 'quarantine') this.#quarantine(name.replace(/\.json$/, ''));
    if (kind === 'channels') this.#move(name, { ...parse<Pointer>(bytes), seq }, by);
    if (kind === 'rollouts' && seq > 0) this.#enter(name, { ...parse<State>(bytes), seq }, by);
    if (path.endsWith('/manifest.json')) this.#world.note(by.name, `published ${name}`);
  }

  removed(path: string, by: Writer): void {
    const [, kind, version = ''] = path.split('/');
    if (kind === 'layers') {
      const owner = this.#manifests().find(({ layers }) => layers.includes(path));
      this.#world.require(owner === undefined, 'no published layer is removed', () => {
        return `${by.name} removes ${path}, which ${owner?.version} names`;
      });
    }
    if (!path.endsWith('/manifest.json')) return;
    for (const [channel, { version: wanted, atCall }] of this.pointers) {
      // Who points there while it is removed has chosen what is neither wanted nor young (docs/adr/0019).
      const isKept = wanted === version && atCall < by.decidedFrom;
      this.#world.require(!isKept, 'no wanted version is removed', () => {
        return `${by.name} removes ${version}, which ${channel} points to`;
      });
    }
  }

  /** After a collection: what lies in the repository belongs to a version. */
  requireNoOrphans(): void {
    const reached = new Set(this.#manifests().flatMap(({ layers }) => layers));
    for (const path of this.#store().objects.keys()) {
      const isOrphan =
        (path.startsWith(`${BUNDLE}/layers/`) && !reached.has(path)) ||
        /^[^/]+\/(publishing|gc)\//.test(path);
      this.#world.require(!isOrphan, 'nothing is left over', () => path);
    }
  }

  #manifests(): { version: string; layers: string[] }[] {
    return [...this.#store().objects].flatMap(([path, { bytes }]) => {
      const [, kind, version = '', file] = path.split('/');
      if (kind !== 'versions' || file !== 'manifest.json') return [];
      const { tables } = parseManifest(new TextDecoder().decode(bytes), path);
      const layers = tables.flatMap(({ name, shards }) =>
        shards.flat().map(({ contentId }) => layerPath(BUNDLE, name, contentId)),
      );
      return [{ version, layers }];
    });
  }

  #quarantine(version: string): void {
    if (!this.quarantined.has(version)) this.quarantined.set(version, this.#world.calls);
  }

  #move(channel: string, entry: Omit<Pointer, 'atCall'>, by: Writer): void {
    const world = this.#world;
    const { seq, version, pinned = false, quarantines, reason } = entry;
    const before = this.pointers.get(channel);
    world.note(by.name, `${channel} ${seq}: ${version}${pinned ? ' pinned' : ''} (${reason})`);
    const text = (): string => `${by.name} writes entry ${seq} of ${channel}: ${version}`;
    world.require(seq === (before?.seq ?? 0) + 1, 'a pointer log has no gaps', text);
    const leavesPin = before?.pinned === true && (version !== before.version || pinned);
    world.require(!leavesPin, 'nobody moves a pinned channel', text);
    const isBack = version !== before?.version && this.#wasBad(version, by);
    world.require(!isBack, 'a quarantined version never returns', text);
    const isMove = by.name.startsWith('controller') && reason.startsWith('rollout of ');
    const isHeld = channel === CANDIDATE_CHANNEL || !isMove || this.#isStaged(version);
    world.require(isHeld, 'a rollout points to what is staged', text);
    this.pointers.set(channel, { ...entry, atCall: world.calls });
    if (quarantines !== undefined) this.#quarantine(quarantines);
  }

  /** Before whoever moves there began to decide. */
  #wasBad(version: string, by: Writer): boolean {
    return (this.quarantined.get(version) ?? Number.POSITIVE_INFINITY) < by.decidedFrom;
  }

  #enter(version: string, entry: State, by: Writer): void {
    const world = this.#world;
    const before = this.rollouts.get(version);
    world.note(by.name, `rollout of ${version} ${entry.seq}: ${entry.state}`);
    const text = (): string => `${by.name}: ${version} from ${before?.state} to ${entry.state}`;
    world.require(entry.seq === (before?.seq ?? 0) + 1, 'a rollout log has no gaps', text);
    world.require(mayFollow(before?.state, entry.state), 'states follow each other', text);
    const isFound = entry.reason.startsWith('its source is damaged');
    const isGuess = isFound && !this.#isDamaged(version);
    world.require(!isGuess, 'faults of hosts condemn no version', text);
    const transition = `${before?.state ?? ''}>${entry.state}`;
    this.transitions.set(transition, (this.transitions.get(transition) ?? 0) + 1);
    this.rollouts.set(version, entry);
  }
}

function parse<T>(bytes: Uint8Array): T {
  return JSON.parse(new TextDecoder().decode(bytes)) as T;
}

/**
 * Garbage collection of one bundle: versions that nobody needs, then what no version left reaches. Safe beside publishers
 * without a lock or a clock (docs/adr/0019): a publisher first tells what it will name and then looks whether a collection
 * runs; a collection first says that it runs and then reads what publishers told. Killed at any point it is harmless, and the
 * next one goes on.
 */
import { randomUUID } from 'node:crypto';
import { CubeError } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import { type Manifest, parseManifest } from '../core/manifest.ts';
import { isUnderWay } from '../core/rollout.ts';
import type { Clock } from '../platform/clock.ts';
import { faultPoint } from '../platform/fault-point.ts';
import { fateOf, processMark, readProcessMark } from '../platform/process-mark.ts';
import type { Backend, Eraser, StoredObject } from './backend.ts';
import { Channels } from './channels.ts';
import { corruptWhenUnreadable } from './entries.ts';
import {
  collectingPath,
  intentsFolder,
  layerPath,
  layersFolder,
  manifestPath,
  rolloutsFolder,
  versionsFolder,
} from './layout.ts';
import { MANIFEST_BYTES_MAX } from './published-manifest.ts';
import { type PublishedVersion, retainVersions } from './retention.ts';
import { RolloutLog } from './rollout-log.ts';

/** A publication that takes longer was killed. */
const INTENT_MS = 7 * 24 * 3_600_000;
/** A collection that takes longer was killed. */
const COLLECTION_MS = 3_600_000;
/** Removals between two looks whether the collection is still ours. */
const LOOK_EVERY = 100;
const MARK_BYTES_MAX = 64 << 10;

export interface GarbagePolicy {
  /** The newest versions that are not quarantined, at least 1. */
  readonly keepVersions: number;
  /** Versions published within so long, and whatever lies about for less. */
  readonly keepMs: number;
}

export interface GarbageReport {
  /** Versions that go, or would go. */
  readonly versions: readonly string[];
  /** Why the others stay. */
  readonly kept: readonly { readonly version: string; readonly why: string }[];
  readonly objects: number;
  readonly bytes: number;
}

interface Place {
  readonly backend: Backend;
  readonly clock: Clock;
}

export async function collectGarbage(
  place: Place,
  bundle: string,
  policy: GarbagePolicy,
  { by, dryRun }: { by: string; dryRun: boolean },
): Promise<GarbageReport> {
  const { eraser } = place.backend;
  if (eraser === undefined) {
    const message = `${place.backend.location}: nothing can be removed there; collect in the folder or bucket itself`;
    throw new CubeError('UNSUPPORTED', message);
  }
  const collection = new Collection(place, eraser, bundle, policy);
  if (dryRun) return (await collection.plan()).report;
  await collection.begin(by);
  try {
    faultPoint('gc.begun');
    const plan = await collection.plan();
    await collection.remove(plan);
    return plan.report;
  } finally {
    await collection.end();
  }
}

/** What lies in the bundle. */
interface Look {
  readonly layers: readonly StoredObject[];
  readonly rollouts: readonly StoredObject[];
  readonly told: readonly StoredObject[];
  /** Of publications that may be under way. */
  readonly publishing: readonly Manifest[];
  readonly files: readonly StoredObject[];
  readonly published: readonly PublishedVersion[];
}

interface Plan {
  readonly report: GarbageReport;
  readonly going: readonly string[];
}

class Collection {
  readonly #backend: Backend;
  readonly #clock: Clock;
  readonly #eraser: Eraser;
  readonly #bundle: string;
  readonly #policy: GarbagePolicy;
  /** Reads each entry of a log once, however many versions go. */
  readonly #channels: Channels;
  readonly #id = randomUUID();

  constructor({ backend, clock }: Place, eraser: Eraser, bundle: string, policy: GarbagePolicy) {
    this.#backend = backend;
    this.#clock = clock;
    this.#eraser = eraser;
    this.#bundle = bundle;
    this.#policy = policy;
    const requireVersion = async (): Promise<void> => undefined;
    this.#channels = new Channels({ backend, keys: {}, clock, requireVersion });
  }

  /** Says that a collection runs. One whose process is gone is taken over: at once where that can be known, else after an hour. */
  async begin(by: string): Promise<void> {
    const path = collectingPath(this.#bundle);
    const at = this.#clock.isoTime();
    const mark = { id: this.#id, at, by, process: processMark() };
    const bytes = new TextEncoder().encode(`${JSON.stringify(mark)}\n`);
    if (await this.#backend.putIfAbsent(path, bytes)) return;
    const [other] = await this.#eraser.objects(`${this.#bundle}/gc`);
    if (other !== undefined && (other.ageMs > COLLECTION_MS || (await this.#isGone(other)))) {
      await this.#eraser.remove(path);
      if (await this.#backend.putIfAbsent(path, bytes)) return;
    }
    throw new CubeError(
      'CONFLICT',
      `another garbage collection of ${this.#bundle} runs (${this.#backend.location}/${path} says whose); ` +
        'one that was killed on another host is taken over after an hour, or remove that file when you know that it was',
    );
  }

  /** What was written by something else, or is half read, says nothing. */
  async #isGone({ path }: StoredObject): Promise<boolean> {
    try {
      const text = new TextDecoder().decode(await this.#backend.read(path, MARK_BYTES_MAX));
      const mark = readProcessMark(JsonReader.parse(text, path).field('process'));
      return fateOf(mark) === 'gone';
    } catch {
      return false;
    }
  }

  async end(): Promise<void> {
    if (await this.#isOurs()) await this.#eraser.remove(collectingPath(this.#bundle));
  }

  /** What would go if nothing happened meanwhile. */
  async plan(): Promise<Plan> {
    const look = await this.#look();
    const retained = await this.#retained(look);
    const going = look.published
      .map(({ version }) => version)
      .filter((version) => !retained.has(version));
    const objects = await this.#unreached(look, new Set(going));
    const manifests = look.files.filter(({ path }) =>
      going.some((version) => path === manifestPath(this.#bundle, version)),
    );
    const all = [...manifests, ...objects];
    const report = {
      versions: going,
      kept: [...retained].map(([version, why]) => ({ version, why })),
      objects: all.length,
      bytes: all.reduce((sum, object) => sum + object.bytes, 0),
    };
    return { report, going };
  }

  /** Manifests first: what only they reached belongs to nobody then, and whoever comes next removes it. */
  async remove({ going }: Plan): Promise<void> {
    const gone = new Set<string>();
    for (const version of going) {
      await this.#requireOurs();
      // Somebody may have gone back to it while others were removed.
      if ((await this.#wanted()).has(version)) continue;
      if (await this.#removeManifest(version)) gone.add(version);
    }
    const unreached = await this.#unreached(await this.#look(), gone);
    for (const [n, { path }] of unreached.entries()) {
      if (n % LOOK_EVERY === 0) await this.#requireOurs();
      await this.#eraser.remove(path);
      faultPoint('gc.object');
    }
  }

  /** What somebody pointed to at that moment is put back. @returns whether it is gone */
  async #removeManifest(version: string): Promise<boolean> {
    const path = manifestPath(this.#bundle, version);
    const bytes = await this.#backend.read(path, MANIFEST_BYTES_MAX);
    await this.#eraser.remove(path);
    faultPoint('gc.manifest');
    if (!(await this.#wanted()).has(version)) return true;
    await this.#backend.putIfAbsent(path, bytes);
    return false;
  }

  /**
   * In this order: what may go is listed before what keeps it is read. A publisher takes back what it told when its manifest
   * is in place, so who reads what was told first and the manifests second misses neither.
   */
  async #look(): Promise<Look> {
    const layers = await this.#eraser.objects(layersFolder(this.#bundle));
    const rollouts = await this.#eraser.objects(rolloutsFolder(this.#bundle));
    const told = await this.#eraser.objects(intentsFolder(this.#bundle));
    const publishing: Manifest[] = [];
    for (const { path, ageMs } of told) {
      const manifest = ageMs > INTENT_MS ? undefined : await this.#manifest(path);
      if (manifest !== undefined) publishing.push(manifest);
    }
    const files = await this.#eraser.objects(versionsFolder(this.#bundle));
    return { layers, rollouts, told, publishing, files, published: this.#published(files) };
  }

  /** @param without versions whose manifests are gone, or count as gone */
  async #unreached(look: Look, without: ReadonlySet<string>): Promise<StoredObject[]> {
    const { layers, told, publishing, published } = look;
    const reached = new Set<string>();
    for (const manifest of publishing) this.#reach(manifest, reached);
    const left = published.map(({ version }) => version).filter((name) => !without.has(name));
    for (const version of left) {
      const manifest = await this.#manifest(manifestPath(this.#bundle, version));
      if (manifest !== undefined) this.#reach(manifest, reached);
    }
    return [
      ...this.#filesOfNobody(look, new Set(left), without),
      ...layers.filter(({ path, ageMs }) => !reached.has(path) && ageMs > this.#policy.keepMs),
      ...told.filter(({ ageMs }) => ageMs > INTENT_MS),
    ];
  }

  #published(files: readonly StoredObject[]): PublishedVersion[] {
    const root = `${versionsFolder(this.#bundle)}/`;
    return files.flatMap(({ path, ageMs }) => {
      const [version = '', file, ...deeper] = path.slice(root.length).split('/');
      return file === 'manifest.json' && deeper.length === 0 ? [{ version, ageMs }] : [];
    });
  }

  async #retained({ published, publishing }: Look): Promise<Map<string, string>> {
    const underWay = new Set(publishing.map(({ version }) => version));
    for (const { version } of published) {
      const place = { backend: this.#backend, keys: {}, clock: this.#clock };
      const log = new RolloutLog({ ...place, bundle: this.#bundle, version });
      const state = (await log.history()).at(-1)?.state;
      if (state !== undefined && isUnderWay(state)) underWay.add(version);
    }
    const wanted = await this.#wanted();
    const quarantined = await this.#channels.quarantined(this.#bundle);
    return retainVersions(published, { wanted, underWay, quarantined, ...this.#policy });
  }

  /** What channels point to, or would go back to, and which. */
  async #wanted(): Promise<Map<string, string>> {
    const wanted = new Map<string, string>();
    const channels = this.#channels;
    for (const channel of await channels.names(this.#bundle)) {
      const { pointer, previous } = await channels.state(this.#bundle, channel);
      if (previous !== undefined)
        wanted.set(previous.version, `channel ${channel} goes back to it`);
      if (pointer !== undefined) wanted.set(pointer.version, `channel ${channel} points to it`);
    }
    return wanted;
  }

  /** Files of versions that go, of publications that nobody finished, and of a collection that was killed. */
  #filesOfNobody(
    { files, rollouts, publishing }: Look,
    left: ReadonlySet<string>,
    without: ReadonlySet<string>,
  ): StoredObject[] {
    const idleMs = Math.max(this.#policy.keepMs, INTENT_MS);
    return [...files, ...rollouts].filter(({ path, ageMs }) => {
      const version = path.split('/')[2] ?? '';
      const isManifest = path === `${versionsFolder(this.#bundle)}/${version}/manifest.json`;
      if (isManifest || left.has(version)) return false;
      return without.has(version) || (publishing.length === 0 && ageMs > idleMs);
    });
  }

  #reach(manifest: Manifest, reached: Set<string>): void {
    for (const table of manifest.tables) {
      for (const { contentId } of table.shards.flat()) {
        reached.add(layerPath(this.#bundle, table.name, contentId));
      }
    }
  }

  /**
   * Undefined when it has gone meanwhile. One that cannot be read stops everything: what it reaches is not known.
   * @throws CubeError CORRUPT
   */
  async #manifest(path: string): Promise<Manifest | undefined> {
    try {
      const bytes = await this.#backend.read(path, MANIFEST_BYTES_MAX);
      const name = `${this.#backend.location}/${path}`;
      return corruptWhenUnreadable(() => parseManifest(new TextDecoder().decode(bytes), name));
    } catch (error) {
      if (CubeError.from(error).code === 'NOT_FOUND') return undefined;
      throw error;
    }
  }

  async #isOurs(): Promise<boolean> {
    const path = collectingPath(this.#bundle);
    if ((await this.#backend.size(path)) === undefined) return false;
    const text = new TextDecoder().decode(await this.#backend.read(path, MANIFEST_BYTES_MAX));
    return text.includes(this.#id);
  }

  async #requireOurs(): Promise<void> {
    if (await this.#isOurs()) return;
    const message = `the garbage collection of ${this.#bundle} took so long that another took it over; it stops here`;
    throw new CubeError('CONFLICT', message);
  }
}

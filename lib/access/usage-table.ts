/**
 * The usage of every key in this process. With a file, the daily counts survive restarts; a process
 * that is killed loses those of the last seconds.
 */
import { CubeError } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import { fileExists, readText, replaceFile } from '../platform/files.ts';
import type { Logger } from '../platform/logs.ts';
import type { ApiKey } from './api-keys.ts';
import type { AccessClock } from './key-store.ts';
import { type DailyUsage, KeyUsage } from './key-usage.ts';
import { Principal } from './principal.ts';
import { GrantedScopes } from './scopes.ts';

const FORMAT = 'hypercube-key-usage-1';
const FILE_BYTES_MAX = 64 << 20;
const SAVE_INTERVAL_MS = 5_000;

interface Known {
  readonly key: ApiKey;
  readonly principal: Principal;
  readonly usage: KeyUsage;
}

export class UsageTable {
  readonly #path: string | undefined;
  readonly #logger: Logger;
  readonly #clock: AccessClock;
  readonly #known = new Map<string, Known>();
  /** Counts of keys that have not called since the start. */
  readonly #saved: Map<string, DailyUsage>;
  #savedText = '';
  readonly #timer: NodeJS.Timeout | undefined;

  /** @throws CubeError when the file is unreadable or invalid: its quotas would begin anew */
  constructor(path: string | undefined, logger: Logger, clock: AccessClock) {
    this.#path = path;
    this.#logger = logger;
    this.#clock = clock;
    this.#saved = path === undefined || !fileExists(path) ? new Map() : readUsage(path);
    if (path !== undefined) this.#timer = setInterval(() => this.save(), SAVE_INTERVAL_MS).unref();
  }

  /** The caller with this key. Its limits are those of the key file as it is now. */
  getPrincipal(key: ApiKey): Principal {
    const known = this.#known.get(key.id);
    if (known?.key === key) return known.principal;
    const { id, limits } = key;
    const usage = known?.usage ?? new KeyUsage(id, limits, this.#clock, this.#saved.get(id));
    usage.setLimits(limits);
    const principal = new Principal('key', id, new GrantedScopes(key.scopes), usage);
    this.#known.set(id, { key, principal, usage });
    return principal;
  }

  /** Writes the daily counts if they changed. A failure is logged; the next call tries again. */
  save(): void {
    if (this.#path === undefined) return;
    const keys = Object.fromEntries([
      ...this.#saved,
      ...[...this.#known].map(([id, { usage }]) => [id, usage.daily] as const),
    ]);
    const text = `${JSON.stringify({ format: FORMAT, keys })}\n`;
    if (text === this.#savedText) return;
    try {
      replaceFile(this.#path, text);
      this.#savedText = text;
    } catch (error) {
      const { message } = CubeError.from(error);
      this.#logger.warn({ error: message }, 'daily usage of API keys not saved');
    }
  }

  close(): void {
    clearInterval(this.#timer);
    this.save();
  }
}

/** @throws CubeError */
function readUsage(path: string): Map<string, DailyUsage> {
  const json = JsonReader.parse(readText(path, FILE_BYTES_MAX), path);
  json.rejectUnknownFields(['format', 'keys']);
  json.field('format').choice([FORMAT]);
  return new Map(
    json
      .field('keys')
      .entries()
      .map(([id, usage]) => [
        id,
        {
          day: usage.field('day').integer(0),
          requests: usage.field('requests').integer(0),
          rows: usage.field('rows').integer(0),
        },
      ]),
  );
}

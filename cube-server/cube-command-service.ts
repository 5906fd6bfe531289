/**
 * Cube's commands, `POST /ControlService/cmd`, with Cube's responses: formatted JSON for status,
 * `null` for all others, HTTP 500 for failures. Cube has a current and a background dictionary;
 * here they are the active version of one bundle and one other loaded version.
 */

import { CubeError, type ErrorCode } from '../lib/core/errors.ts';
import { JsonReader } from '../lib/core/json.ts';
import { NAME_PATTERN } from '../lib/core/names.ts';
import { quoteInput } from '../lib/core/shown-input.ts';
import type { Logger } from '../lib/platform/logs.ts';
import type { VersionControl } from './version-control.ts';

/** More than enough: a command has one or two names. */
export const COMMAND_CHARS_MAX: number = 64 << 10;
const STATUS_RUNNING = 0;
const STATUS_LOADING = 1;

export interface CubeCommandResult {
  /** 200, 400 for an invalid command, 500 for a failed one. */
  readonly status: number;
  readonly text: string;
  /** Set when the command failed. */
  readonly failure?: CubeError;
}

/** Loads versions for Cube's commands. */
export interface CubeVersionLoader {
  /** @throws CubeError CONFLICT when the bundle is ambiguous */
  getBundle(): string;
  /**
   * Loads a version.
   * @param path `version_path`: "/name", or empty for the folder itself
   * @param parent for a patch, the version that it must extend
   * @returns the version's name
   */
  load(path: string, parent: string | undefined): Promise<string>;
  /** A load is in progress. */
  readonly isLoading: boolean;
}

export interface CubeCommandServiceOptions {
  readonly versions: VersionControl;
  readonly loader: CubeVersionLoader;
  readonly logger: Logger;
}

type CommandHandler = (fields: JsonReader) => Promise<void>;

export class CubeCommandService {
  readonly #versions: VersionControl;
  readonly #cube: CubeVersionLoader;
  readonly #logger: Logger;
  readonly #commands: ReadonlyMap<string, CommandHandler>;
  #backgroundVersion = '';
  #busy = false;

  constructor({ versions, loader, logger }: CubeCommandServiceOptions) {
    this.#versions = versions;
    this.#cube = loader;
    this.#logger = logger;
    this.#commands = new Map<string, CommandHandler>([
      ['bg_load_base', (fields) => this.#load(readPath(fields), false)],
      ['bg_load_patch', (fields) => this.#load(readPath(fields), true)],
      ['bg_unload', () => this.#unloadBackground()],
      ['bg_switch', () => this.#switch()],
      ['enable', (fields) => this.#enable(fields.field('version').string())],
      ['reload_base', (fields) => this.#reload(readPath(fields), false)],
      ['reload_patch', (fields) => this.#reload(readPath(fields), true)],
    ]);
  }

  /** @param body JSON: {"cmd": …}. Never throws */
  async run(body: string): Promise<CubeCommandResult> {
    let fields: JsonReader;
    let name: string;
    try {
      fields = readBody(body);
      name = fields.field('cmd').string();
    } catch (error) {
      return { status: 400, text: '', failure: CubeError.from(error) };
    }
    if (name === 'status') return { status: 200, text: this.#statusText() };
    const command = this.#commands.get(name);
    if (command === undefined) {
      return createFailure('UNSUPPORTED', `unknown cmd ${quoteInput(name)}`);
    }
    if (this.#busy) {
      return createFailure(
        'OVERLOADED',
        'another command is running; check its status and retry later',
      );
    }
    this.#busy = true;
    try {
      await command(fields);
      this.#logger.info({ cmd: name, ...this.#getState() }, 'command done');
      return { status: 200, text: 'null' };
    } catch (error) {
      const failure = CubeError.from(error);
      const { code, message } = failure;
      this.#logger.error({ cmd: name, code, reason: message }, 'command failed');
      if (code === 'INVALID_ARGUMENT') return { status: 400, text: '', failure };
      return { status: 500, text: 'null', failure };
    } finally {
      this.#busy = false;
    }
  }

  #statusText(): string {
    const { current, background, loading } = this.#getState();
    const status = loading ? STATUS_LOADING : STATUS_RUNNING;
    return JSON.stringify({ cur_version: current, bg_version: background, status }, null, 4);
  }

  /** Without an unambiguous bundle there are no versions. */
  #getState(): { current: string; background: string; loading: boolean } {
    let bundle = '';
    try {
      bundle = this.#cube.getBundle();
    } catch {
      return { current: '', background: '', loading: this.#cube.isLoading };
    }
    const { loaded } = this.#versions;
    const isBackgroundLoaded =
      loaded.find({ bundle, version: this.#backgroundVersion }) !== undefined;
    return {
      current: loaded.getActiveVersionName(bundle),
      background: isBackgroundLoaded ? this.#backgroundVersion : '',
      loading: this.#cube.isLoading,
    };
  }

  async #load(path: string, patch: boolean): Promise<void> {
    const { current, background } = this.#getState();
    if (patch && current === '') {
      throw new CubeError(
        'CONFLICT',
        'a patch extends the current version, but no version is current; load a base first',
      );
    }
    const load = (): Promise<string> => this.#cube.load(path, patch ? current : undefined);
    const version = await load().catch(async (error: unknown) => {
      // Cube frees the background version before every load; here only if there is no room
      // otherwise.
      if (CubeError.from(error).code !== 'OVERLOADED' || background === '') throw error;
      await this.#unloadBackground();
      return load();
    });
    if (version !== background) await this.#unloadBackground();
    this.#backgroundVersion = version;
  }

  async #switch(): Promise<void> {
    const { current, background } = this.#getState();
    if (background === '') {
      throw new CubeError('CONFLICT', 'there is no background version; load one first');
    }
    await this.#versions.activate({ bundle: this.#cube.getBundle(), version: background });
    this.#backgroundVersion = current;
  }

  async #enable(version: string): Promise<void> {
    const { current, background } = this.#getState();
    if (version !== '' && version === current) return;
    if (version === '' || version !== background) {
      throw new CubeError(
        'CONFLICT',
        `version ${quoteInput(version)} is neither the current version ` +
          `(${current || 'none'}) nor the background version (${background || 'none'})`,
      );
    }
    await this.#switch();
  }

  async #reload(path: string, patch: boolean): Promise<void> {
    await this.#load(path, patch);
    if (this.#getState().background !== this.#getState().current) await this.#switch();
    await this.#unloadBackground();
  }

  async #unloadBackground(): Promise<void> {
    const { current, background } = this.#getState();
    this.#backgroundVersion = '';
    if (background === '' || background === current) return;
    await this.#versions.unload({
      bundle: this.#cube.getBundle(),
      version: background,
      force: true,
    });
  }
}

function createFailure(code: ErrorCode, reason: string): CubeCommandResult {
  return { status: 500, text: 'null', failure: new CubeError(code, reason) };
}

function readBody(body: string): JsonReader {
  if (body.length <= COMMAND_CHARS_MAX) return JsonReader.parse(body, 'command');
  throw new CubeError(
    'TOO_LARGE',
    `${body.length} characters, a command has at most ${COMMAND_CHARS_MAX}`,
  );
}

/** Accepts "/name", or empty for the folder itself. It becomes part of a path. */
function readPath(fields: JsonReader): string {
  const path = fields.field('version_path').string();
  if (path === '' || (path.startsWith('/') && NAME_PATTERN.test(path.slice(1)))) return path;
  return fields.field('version_path').fail('"/" and a version name, or nothing');
}

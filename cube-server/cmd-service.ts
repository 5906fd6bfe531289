/**
 * Cube's commands, `POST /ControlService/cmd`, with Cube's answers: pretty JSON for status, `null` for everything else,
 * and HTTP 500 for what failed. Cube has a current and a background dictionary; here they are the active version of
 * one bundle and one more version that is resident.
 */
import { CubeError, type ErrorCode } from '../lib/core/errors.ts';
import { JsonReader } from '../lib/core/json.ts';
import { NAME_PATTERN } from '../lib/core/names.ts';
import type { Logger } from '../lib/platform/logs.ts';
import type { VersionControl } from './version-control.ts';

/** The longest command is a name or two. */
export const BODY_CHARS_MAX: number = 64 << 10;
const STATUS_RUNNING = 0;
const STATUS_LOADING = 1;

export interface CmdAnswer {
  /** 200, 400 for a body that is no command, 500 for a command that failed. */
  readonly status: number;
  readonly text: string;
  /** Why it failed. */
  readonly failure?: CubeError;
}

/** Where the versions of Cube's commands come from. */
export interface CubeVersions {
  /** @throws CubeError CONFLICT when it cannot be told which bundle is meant */
  bundle(): string;
  /**
   * Makes a version resident. @param path as of `version_path`: "/name", or empty for the folder itself
   * @param parent for a patch: the version that it must extend
   * @returns its name
   */
  load(path: string, parent: string | undefined): Promise<string>;
  /** A load is under way. */
  readonly loading: boolean;
}

export interface CmdServiceOptions {
  readonly versions: VersionControl;
  readonly cube: CubeVersions;
  readonly logger: Logger;
}

type Command = (fields: JsonReader) => Promise<void>;

export class CmdService {
  readonly #versions: VersionControl;
  readonly #cube: CubeVersions;
  readonly #logger: Logger;
  readonly #commands: ReadonlyMap<string, Command>;
  #background = '';
  #busy = false;

  constructor({ versions, cube, logger }: CmdServiceOptions) {
    this.#versions = versions;
    this.#cube = cube;
    this.#logger = logger;
    this.#commands = new Map<string, Command>([
      ['bg_load_base', (fields) => this.#load(readPath(fields), false)],
      ['bg_load_patch', (fields) => this.#load(readPath(fields), true)],
      ['bg_unload', () => this.#dropBackground()],
      ['bg_switch', () => this.#switch()],
      ['enable', (fields) => this.#enable(fields.field('version').string())],
      ['reload_base', (fields) => this.#reload(readPath(fields), false)],
      ['reload_patch', (fields) => this.#reload(readPath(fields), true)],
    ]);
  }

  /** @param body JSON: {"cmd": …}. Never throws */
  async run(body: string): Promise<CmdAnswer> {
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
      return failed('UNSUPPORTED', `unknown cmd ${JSON.stringify(name.slice(0, 100))}`);
    }
    if (this.#busy) {
      return failed('OVERLOADED', 'another command is running; ask for status, try again later');
    }
    this.#busy = true;
    try {
      await command(fields);
      this.#logger.info({ cmd: name, ...this.#state() }, 'command done');
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
    const { current, background, loading } = this.#state();
    const status = loading ? STATUS_LOADING : STATUS_RUNNING;
    return JSON.stringify({ cur_version: current, bg_version: background, status }, null, 4);
  }

  /** With no bundle to speak of there are no versions either. */
  #state(): { current: string; background: string; loading: boolean } {
    let bundle = '';
    try {
      bundle = this.#cube.bundle();
    } catch {
      return { current: '', background: '', loading: this.#cube.loading };
    }
    const { held } = this.#versions;
    const isHeld = held.find({ bundle, version: this.#background }) !== undefined;
    return {
      current: held.activeName(bundle),
      background: isHeld ? this.#background : '',
      loading: this.#cube.loading,
    };
  }

  async #load(path: string, patch: boolean): Promise<void> {
    const { current, background } = this.#state();
    if (patch && current === '') {
      throw new CubeError('CONFLICT', 'a patch extends the current version, and there is none');
    }
    const load = (): Promise<string> => this.#cube.load(path, patch ? current : undefined);
    const version = await load().catch(async (error: unknown) => {
      // As Cube does for every load, here when there is no other way: the background makes room.
      if (CubeError.from(error).code !== 'OVERLOADED' || background === '') throw error;
      await this.#dropBackground();
      return load();
    });
    if (version !== background) await this.#dropBackground();
    this.#background = version;
  }

  async #switch(): Promise<void> {
    const { current, background } = this.#state();
    if (background === '') {
      throw new CubeError('CONFLICT', 'there is no background version; load one first');
    }
    await this.#versions.activate({ bundle: this.#cube.bundle(), version: background });
    this.#background = current;
  }

  async #enable(version: string): Promise<void> {
    const { current, background } = this.#state();
    if (version !== '' && version === current) return;
    if (version === '' || version !== background) {
      throw new CubeError(
        'CONFLICT',
        `version ${JSON.stringify(version.slice(0, 100))} is neither current (${current || 'none'}) nor background (${background || 'none'})`,
      );
    }
    await this.#switch();
  }

  async #reload(path: string, patch: boolean): Promise<void> {
    await this.#load(path, patch);
    if (this.#state().background !== this.#state().current) await this.#switch();
    await this.#dropBackground();
  }

  async #dropBackground(): Promise<void> {
    const { current, background } = this.#state();
    this.#background = '';
    if (background === '' || background === current) return;
    await this.#versions.unload({
      bundle: this.#cube.bundle(),
      version: background,
      force: true,
    });
  }
}

function failed(code: ErrorCode, reason: string): CmdAnswer {
  return { status: 500, text: 'null', failure: new CubeError(code, reason) };
}

function readBody(body: string): JsonReader {
  if (body.length <= BODY_CHARS_MAX) return JsonReader.parse(body, 'command');
  throw new CubeError(
    'TOO_LARGE',
    `${body.length} characters, a command has at most ${BODY_CHARS_MAX}`,
  );
}

/** "/name", or empty for the folder itself: it becomes part of a path, so nothing else will do. */
function readPath(fields: JsonReader): string {
  const path = fields.field('version_path').string();
  if (path === '' || (path.startsWith('/') && NAME_PATTERN.test(path.slice(1)))) return path;
  return fields.field('version_path').fail('"/" and a version name, or nothing');
}

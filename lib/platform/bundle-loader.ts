/**
 * Starts a bundled program, with the code that V8 compiled when the program was built
 * (docs/adr/0037-bundled-programs.md). A code cache is optional: without a valid one, Node loads
 * the same files by itself.
 *
 * A cache is trusted as much as the program, because both lie in `dist/`: an account that can write
 * one of them can write the other.
 */
import { isAscii } from 'node:buffer';
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename, dirname, join, resolve } from 'node:path';
import { Script } from 'node:vm';
import { crc32 } from 'node:zlib';
import { keepCompiledCode } from './compile-cache.ts';

/** Before the header: the checksum of all that follows, and the length of the header. */
const PREFIX_BYTES = 8;
/** V8 copies cached code that lies at another address. */
const ALIGNMENT_BYTES = 8;
/** On the first line, so that the lines of a file keep their numbers. */
const WRAPPER_BEGIN = Buffer.from('(function (exports, require, module, __filename, __dirname) {');
const WRAPPER_END = Buffer.from('\n})');

type Wrapper = (
  exports: unknown,
  require: (id: string) => unknown,
  module: Module,
  filename: string,
  dirname: string,
) => void;

interface Module {
  exports: unknown;
}

interface CachedFile {
  /** Checksum of the file's bytes. V8 compares the length only. */
  readonly sourceCrc: number;
  readonly code: Buffer;
}

interface Header {
  readonly runtime: string;
  readonly files: readonly (readonly [name: string, sourceCrc: number, codeBytes: number])[];
}

/** Another build of the same Node version may have other parts. */
function describeRuntime(): string {
  return JSON.stringify([process.version, process.platform, process.arch, process.versions]);
}

/** @param program path of the program's file in `dist/chunks/` */
export function findCodeCache(program: string): string {
  const name = basename(program).replace(/\.cjs$/, '.bin');
  return join(dirname(program), '..', 'code-cache', name);
}

/** Undefined when there is none for this runtime, or when it is damaged. */
function readCodeCache(path: string): Map<string, CachedFile> | undefined {
  try {
    const bytes = readFileSync(path);
    if (crc32(bytes.subarray(4)) !== bytes.readUInt32LE(0)) return undefined;
    const headerEnd = PREFIX_BYTES + bytes.readUInt32LE(4);
    const { runtime, files } = JSON.parse(
      bytes.toString('utf8', PREFIX_BYTES, headerEnd),
    ) as Header;
    if (runtime !== describeRuntime()) return undefined;
    const cached = new Map<string, CachedFile>();
    let at = align(headerEnd);
    for (const [name, sourceCrc, codeBytes] of files) {
      cached.set(name, { sourceCrc, code: bytes.subarray(at, at + codeBytes) });
      at = align(at + codeBytes);
    }
    return cached;
  } catch {
    return undefined;
  }
}

function align(offset: number): number {
  return Math.ceil(offset / ALIGNMENT_BYTES) * ALIGNMENT_BYTES;
}

interface CompiledFile {
  readonly script: Script;
  readonly sourceCrc: number;
}

/** Loads the files of `dist/chunks/` as Node does, with cached code where there is some. */
export class BundleLoader {
  readonly #folder: string;
  readonly #cached: Map<string, CachedFile>;
  readonly #modules = new Map<string, Module>();
  /** What `writeCodeCache` writes. */
  readonly #compiled = new Map<string, CompiledFile>();
  readonly #keepsCompiled: boolean;
  readonly #requireOther: (id: string) => unknown;

  constructor(folder: string, cached?: Map<string, CachedFile>) {
    this.#folder = folder;
    this.#cached = cached ?? new Map();
    this.#keepsCompiled = cached === undefined;
    this.#requireOther = createRequire(join(folder, 'any.cjs'));
  }

  /** The exports of a file, which runs at the first call. */
  load(name: string): unknown {
    const loaded = this.#modules.get(name);
    if (loaded !== undefined) return loaded.exports;
    const module: Module = { exports: {} };
    this.#modules.set(name, module);
    try {
      const run = this.compile(name).runInThisContext() as Wrapper;
      const require = (id: string): unknown =>
        id.startsWith('./') ? this.load(id.slice(2)) : this.#requireOther(id);
      run(module.exports, require, module, join(this.#folder, name), this.#folder);
    } catch (error) {
      this.#modules.delete(name);
      throw error;
    }
    return module.exports;
  }

  /** Compiles a file without running it. */
  compile(name: string): Script {
    const filename = join(this.#folder, name);
    const source = readFileSync(filename);
    const cached = this.#cached.get(name);
    // The memory of the cache is freed when all of it was used.
    this.#cached.delete(name);
    const sourceCrc = cached !== undefined || this.#keepsCompiled ? crc32(source) : 0;
    const wrapped = Buffer.concat([WRAPPER_BEGIN, source, WRAPPER_END]);
    const script = new Script(wrapped.toString(isAscii(wrapped) ? 'latin1' : 'utf8'), {
      filename,
      // V8 refuses code that another version or other flags made, and compiles the source then.
      ...(cached?.sourceCrc === sourceCrc && { cachedData: cached.code }),
    });
    if (this.#keepsCompiled) this.#compiled.set(name, { script, sourceCrc });
    return script;
  }

  /** Writes the code of all files compiled so far, with the functions that have run. */
  writeCodeCache(path: string): void {
    const codes = [...this.#compiled].map(([name, { script, sourceCrc }]) => {
      return { name, sourceCrc, code: script.createCachedData() };
    });
    const header: Header = {
      runtime: describeRuntime(),
      files: codes.map(({ name, sourceCrc, code }) => [name, sourceCrc, code.length]),
    };
    const headerBytes = Buffer.from(JSON.stringify(header));
    const codesAt = align(PREFIX_BYTES + headerBytes.length);
    const length = codes.reduce((at, { code }) => align(at + code.length), codesAt);
    const bytes = Buffer.alloc(length);
    bytes.writeUInt32LE(headerBytes.length, 4);
    headerBytes.copy(bytes, PREFIX_BYTES);
    let at = codesAt;
    for (const { code } of codes) {
      code.copy(bytes, at);
      at = align(at + code.length);
    }
    bytes.writeUInt32LE(crc32(bytes.subarray(4)), 0);
    mkdirSync(dirname(path), { recursive: true });
    // Readers see the whole file or none.
    const temporary = `${path}.${process.pid}.tmp`;
    writeFileSync(temporary, bytes);
    renameSync(temporary, path);
  }
}

/** @param program path of the program's file in `dist/chunks/` */
export function startProgram(program: string): void {
  const path = resolve(program);
  const cached = readCodeCache(findCodeCache(path));
  if (cached !== undefined) {
    new BundleLoader(dirname(path), cached).load(basename(path));
    return;
  }
  keepCompiledCode();
  createRequire(path)(path);
}

/**
 * A module of Node that is loaded when something of it is used first. The bundler writes calls of
 * this for modules that most starts import but do not use: `node:http2` alone takes 5 ms of CPU.
 */
export function loadLazily(name: string): object {
  let loaded: object | undefined;
  const load = (): object => {
    loaded ??= process.getBuiltinModule(name) as object;
    return loaded;
  };
  return new Proxy(
    {},
    {
      get: (_, key) => Reflect.get(load(), key) as unknown,
      has: (_, key) => Reflect.has(load(), key),
      ownKeys: () => Reflect.ownKeys(load()),
      getOwnPropertyDescriptor(_, key) {
        const descriptor = Reflect.getOwnPropertyDescriptor(load(), key);
        // The target has no such property, so that a proxy may not call it fixed.
        return descriptor && { ...descriptor, configurable: true };
      },
    },
  );
}

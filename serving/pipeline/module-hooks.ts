/**
 * Hooks of Node's module loader for the files of pipelines, which run in Node's thread for hooks:
 * - `hypercube/pipeline` is this program's own copy, wherever the file is;
 * - TypeScript is compiled where Node cannot strip types itself;
 * - a reload has URLs of its own (`?hypercube=2`), because Node never reads a URL twice;
 * - what was read is reported, so that worker threads run the same text after the files changed.
 */
import { createRequire, type LoadHook, type ResolveHook } from 'node:module';
import { fileURLToPath } from 'node:url';
import type { MessagePort } from 'node:worker_threads';
import { requireDefined } from '../../lib/core/errors.ts';
import { readText } from '../../lib/platform/files.ts';
import type { ModuleSource } from './module-snapshot.ts';

export interface HookData {
  /** What `hypercube/pipeline` exports. */
  readonly names: readonly string[];
  /** Path of the TypeScript compiler; undefined: Node strips types itself. */
  readonly compiler?: string;
  /** Gets a `ModuleSource` for each file that is read. */
  readonly port?: MessagePort;
  /** Files that are not read again. */
  readonly sources?: readonly ModuleSource[];
}

interface Compiler {
  transpileModule(source: string, options: object): { readonly outputText: string };
  readonly ScriptTarget: { readonly ES2022: number };
  readonly ModuleKind: { readonly ESNext: number };
}

const ENTRY_NAME = 'hypercube/pipeline';
const ENTRY_URL = 'hypercube:pipeline';
/** The property of globalThis with this program's copy, in the thread of the pipeline. */
export const ENTRY_GLOBAL = 'hypercubePipeline';

/** Parameter of the URLs of a reload. */
const RELOAD_PARAMETER = 'hypercube';

let data: HookData = { names: [] };
const sources = new Map<string, ModuleSource>();
let compiler: Compiler | undefined;

/** Called by each thread that registers the hooks; threads may share them. */
export function initialize(given: HookData): void {
  data = { ...data, ...given };
  for (const source of given.sources ?? []) sources.set(source.url, source);
}

/** @param reload number of the reload in this process; 0: the first load */
export function addReload(url: string, reload: number): string {
  return reload === 0 ? url : `${url}?${RELOAD_PARAMETER}=${reload}`;
}

export const resolve: ResolveHook = async (specifier, context, nextResolve) => {
  if (specifier === ENTRY_NAME) return { url: ENTRY_URL, shortCircuit: true };
  const resolved = await nextResolve(specifier, context);
  const reload = findReload(context.parentURL);
  if (reload === 0 || findReload(resolved.url) > 0 || !isOwnFile(resolved.url)) return resolved;
  return { ...resolved, url: addReload(resolved.url, reload) };
};

/** @returns 0 for a URL of the first load */
export function findReload(url = ''): number {
  return Number(new RegExp(`\\?${RELOAD_PARAMETER}=(\\d+)$`).exec(url)?.[1] ?? 0);
}

/** Packages are not loaded again: they may hold resources of the process. */
function isOwnFile(url: string): boolean {
  return /^file:[^?#]*$/.test(url) && !url.includes('/node_modules/');
}

export const load: LoadHook = async (url, context, nextLoad) => {
  if (url === ENTRY_URL) return { format: 'module', source: formatEntry(), shortCircuit: true };
  const known = sources.get(url);
  if (known !== undefined) {
    return { format: known.format as 'module', source: known.text, shortCircuit: true };
  }
  const needsCompiler = data.compiler !== undefined && /^file:[^?]*\.m?ts(\?|$)/.test(url);
  const loaded = needsCompiler
    ? { format: 'module' as const, source: compile(url), shortCircuit: true }
    : await nextLoad(url, context);
  const { format, source } = loaded;
  if (source !== undefined && source !== null && !url.includes('/node_modules/')) {
    const text = typeof source === 'string' ? source : new TextDecoder().decode(source);
    data.port?.postMessage({ url, format: format ?? 'module', text } satisfies ModuleSource);
  }
  return loaded;
};

function compile(url: string): string {
  const fileName = fileURLToPath(url);
  compiler ??= createRequire(import.meta.url)(requireCompiler()) as Compiler;
  const { outputText } = compiler.transpileModule(readText(fileName), {
    fileName,
    compilerOptions: {
      target: compiler.ScriptTarget.ES2022,
      module: compiler.ModuleKind.ESNext,
      isolatedModules: true,
      inlineSourceMap: true,
    },
  });
  return outputText;
}

function requireCompiler(): string {
  return requireDefined(data.compiler, 'the TypeScript compiler');
}

/** A module of its own file would have classes that are not those of the program. */
function formatEntry(): string {
  return `export const { ${data.names.join(', ')} } = globalThis.${ENTRY_GLOBAL};`;
}

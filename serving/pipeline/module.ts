/** Loads the file of a pipeline, JavaScript or TypeScript, and reads its default export. */
import { createRequire, register } from 'node:module';
import { basename, extname, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { MessageChannel, type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';
import { fileExists } from '../../lib/platform/files.ts';
import { findOps } from './find-ops.ts';
import { addReload, ENTRY_GLOBAL, findReload, type HookData } from './module-hooks.ts';
import type { ModuleSnapshot, ModuleSource } from './module-snapshot.ts';
import { Op, RequestOp, ResponseOp } from './op.ts';
import type { PipelineModule, PipelineOps } from './pipeline-module.ts';
import type { OperatorClass } from './workflow.ts';

export interface NamedPipeline extends PipelineModule {
  readonly name: string;
  /** Where it was loaded from; undefined: made in this process. */
  readonly file?: string;
  /** What was read. */
  readonly snapshot?: ModuleSnapshot;
}

interface LoadOptions {
  /** Reads the file and its imports again, without what earlier loads left in memory. */
  readonly isReload?: boolean;
}

type ModuleExport = PipelineOps | PipelineModule;

const FIELDS: readonly string[] = ['name', 'ops', 'layout', 'packTensors'];
const EXTENSIONS: readonly string[] = ['.js', '.mjs', '.ts', '.mts'];
const NAME = /^[\w.-]{1,128}$/;

let hooksRegistered = false;
let compilerRegistered = false;
let reloads = 0;
/** By URL; those of a reload are removed when it has ended. */
const sourcesRead = new Map<string, ModuleSource>();
const ports: MessagePort[] = [];

/**
 * @param known what worker threads run instead of the files
 * @throws CubeError NOT_FOUND; INVALID_ARGUMENT naming the file and what is wrong with it
 */
export async function loadPipelineModule(
  file: string,
  options: LoadOptions = {},
  known?: ModuleSnapshot,
): Promise<NamedPipeline> {
  const { module, snapshot } = await importModule(file, options, known);
  const exported = module['default'];
  try {
    const value = typeof exported === 'function' ? await exported() : exported;
    const pipeline = readExport(value as ModuleExport, file);
    rememberOps(pipeline, file, options);
    return { ...pipeline, file: resolve(file), snapshot };
  } catch (error) {
    if (error instanceof CubeError) throw error;
    throw invalid(file, toMessage(error), error);
  }
}

/** Ops that an earlier load has returned, and that a running pipeline may have. */
const loadedOps = new WeakSet<object>();

/** @throws CubeError INVALID_ARGUMENT when a reload has ops of a running pipeline */
function rememberOps({ ops }: PipelineModule, file: string, { isReload }: LoadOptions): void {
  const { steps, response } = findOps(ops);
  if (isReload === true && loadedOps.has(response)) {
    throw invalid(
      file,
      'it returns the ops of an earlier load; make it an ES module, or create the ops in the ' +
        'exported function',
    );
  }
  for (const op of [...steps, response]) loadedOps.add(op);
}

interface ImportedModule {
  readonly module: Record<string, unknown>;
  readonly snapshot: ModuleSnapshot;
}

async function importModule(
  file: string,
  { isReload = false }: LoadOptions,
  known?: ModuleSnapshot,
): Promise<ImportedModule> {
  const path = resolve(file);
  if (known === undefined && !fileExists(path)) {
    throw new CubeError('NOT_FOUND', `${file}: no such file`);
  }
  if (!EXTENSIONS.includes(extname(path))) {
    throw invalid(file, `expected a file with one of ${EXTENSIONS.join(', ')}`);
  }
  await registerModuleHooks(path, known);
  const reload = isReload ? ++reloads : 0;
  const url = known?.url ?? addReload(pathToFileURL(path).href, reload);
  try {
    const module = await import(url);
    return { module, snapshot: { url, sources: known?.sources ?? takeSources(reload) } };
  } catch (error) {
    throw invalid(file, toMessage(error), error);
  }
}

/** The files that an import has read. The first load keeps them: another one does not read them. */
function takeSources(reload: number): readonly ModuleSource[] {
  for (const port of ports) {
    for (;;) {
      const received = receiveMessageOnPort(port) as { message: ModuleSource } | undefined;
      if (received === undefined) break;
      sourcesRead.set(received.message.url, received.message);
    }
  }
  const found = [...sourcesRead.values()].filter(({ url }) => findReload(url) === reload);
  if (reload > 0) for (const { url } of found) sourcesRead.delete(url);
  return found;
}

function toMessage(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/**
 * The operators of a module: the classes that it exports, by name.
 * @throws CubeError as loadPipelineModule
 */
export async function loadOperators(
  file: string,
  options: LoadOptions = {},
): Promise<ReadonlyMap<string, OperatorClass>> {
  const { module: exported } = await importModule(file, options);
  const classes = Object.entries(exported).filter(
    ([, value]) => typeof value === 'function' && value.prototype instanceof Op,
  );
  if (classes.length === 0) {
    throw invalid(file, 'expected exported classes that extend Op; it exports none');
  }
  return new Map(classes as [string, OperatorClass][]);
}

/**
 * Once in each thread that loads files of pipelines, and again at the first TypeScript file.
 * @param file a file that will be loaded
 * @throws CubeError UNSUPPORTED for TypeScript that nothing can compile
 */
async function registerModuleHooks(file: string, known?: ModuleSnapshot): Promise<void> {
  const needsCompiler = /\.m?ts$/.test(file) && !stripsTypes();
  if (hooksRegistered && (compilerRegistered || !needsCompiler)) return;
  const entry = await import('./index.ts');
  Object.assign(globalThis, { [ENTRY_GLOBAL]: entry });
  const names = Object.keys(entry);
  const { port1, port2 } = new MessageChannel();
  port1.unref();
  ports.push(port1);
  const data: HookData = {
    names,
    port: port2,
    ...(needsCompiler && { compiler: findCompiler(file) }),
    ...(known !== undefined && { sources: known.sources }),
  };
  register('./module-hooks.js', import.meta.url, { data, transferList: [port2] });
  hooksRegistered = true;
  compilerRegistered ||= needsCompiler;
}

function stripsTypes(): boolean {
  return Boolean((process.features as { readonly typescript?: string | false }).typescript);
}

/** The package typescript of the file's project, or of this one. */
function findCompiler(file: string): string {
  for (const from of [pathToFileURL(file).href, import.meta.url]) {
    try {
      return createRequire(from).resolve('typescript');
    } catch {
      // Not installed there.
    }
  }
  throw new CubeError(
    'UNSUPPORTED',
    `${file}: Node ${process.version} cannot run TypeScript; use Node 22.18 or newer, or install ` +
      'the package typescript beside the file, or compile the file and name the .js file',
  );
}

function readExport(exported: ModuleExport | undefined, file: string): NamedPipeline {
  const fallback = basename(file, extname(file));
  if (isOps(exported)) return { name: fallback, ops: exported };
  if (typeof exported !== 'object' || exported === null || !('ops' in exported)) {
    throw invalid(
      file,
      'the default export must be a ResponseOp, a list of ops, an object with ops, or a function ' +
        'that returns one of them',
    );
  }
  const unknown = Object.keys(exported).find((name) => !FIELDS.includes(name));
  if (unknown !== undefined) {
    throw invalid(file, `unknown field ${unknown} of the default export (${FIELDS.join(', ')})`);
  }
  const { name = fallback, ops, layout = 'tensors' } = exported;
  if (!isOps(ops)) throw invalid(file, 'ops must be a ResponseOp or a list of ops');
  if (!NAME.test(name)) {
    throw invalid(file, `name ${JSON.stringify(name)}: expected letters, digits, ".", "_" and "-"`);
  }
  if (layout !== 'tensors' && layout !== 'plain') {
    throw invalid(file, `layout ${JSON.stringify(layout)}: expected tensors or plain`);
  }
  return { ...exported, name };
}

function isOps(value: unknown): value is PipelineOps {
  const isOne = (one: unknown): boolean =>
    one instanceof Op || one instanceof RequestOp || one instanceof ResponseOp;
  return value instanceof ResponseOp || (Array.isArray(value) && value.every(isOne));
}

function invalid(file: string, problem: string, cause?: unknown): CubeError {
  return new CubeError('INVALID_ARGUMENT', `${file}: ${problem}`, { cause });
}

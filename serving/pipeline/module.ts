/** Loads the file of a pipeline, JavaScript or TypeScript, and reads its default export. */
import { createRequire, register } from 'node:module';
import { basename, extname, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { CubeError } from '../../lib/core/errors.ts';
import { fileExists } from '../../lib/platform/files.ts';
import { ENTRY_GLOBAL, type HookData } from './module-hooks.ts';
import { Op, RequestOp, ResponseOp } from './op.ts';
import type { PipelineModule, PipelineOps } from './pipeline-module.ts';
import type { OperatorClass } from './workflow.ts';

export interface NamedPipeline extends PipelineModule {
  readonly name: string;
  /** Where it was loaded from; undefined: made in this process. */
  readonly file?: string;
}

type ModuleExport = PipelineOps | PipelineModule;

const FIELDS: readonly string[] = ['name', 'ops', 'layout', 'packTensors'];
const EXTENSIONS: readonly string[] = ['.js', '.mjs', '.ts', '.mts'];
const NAME = /^[\w.-]{1,128}$/;

let hooksRegistered = false;
let compilerRegistered = false;

/** @throws CubeError NOT_FOUND; INVALID_ARGUMENT naming the file and what is wrong with it */
export async function loadPipelineModule(file: string): Promise<NamedPipeline> {
  const module = await importModule(file);
  const exported = module['default'];
  try {
    const value = typeof exported === 'function' ? await exported() : exported;
    return { ...readExport(value as ModuleExport, file), file: resolve(file) };
  } catch (error) {
    if (error instanceof CubeError) throw error;
    throw invalid(file, toMessage(error), error);
  }
}

async function importModule(file: string): Promise<Record<string, unknown>> {
  const path = resolve(file);
  if (!fileExists(path)) throw new CubeError('NOT_FOUND', `${file}: no such file`);
  if (!EXTENSIONS.includes(extname(path))) {
    throw invalid(file, `expected a file with one of ${EXTENSIONS.join(', ')}`);
  }
  await registerModuleHooks(path);
  try {
    return await import(pathToFileURL(path).href);
  } catch (error) {
    throw invalid(file, toMessage(error), error);
  }
}

function toMessage(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/**
 * The operators of a module: the classes that it exports, by name.
 * @throws CubeError as loadPipelineModule
 */
export async function loadOperators(file: string): Promise<ReadonlyMap<string, OperatorClass>> {
  const exported = await importModule(file);
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
async function registerModuleHooks(file: string): Promise<void> {
  const needsCompiler = /\.m?ts$/.test(file) && !stripsTypes();
  if (hooksRegistered && (compilerRegistered || !needsCompiler)) return;
  const entry = await import('./index.ts');
  Object.assign(globalThis, { [ENTRY_GLOBAL]: entry });
  const names = Object.keys(entry);
  const data: HookData = needsCompiler ? { names, compiler: findCompiler(file) } : { names };
  register('./module-hooks.js', import.meta.url, { data });
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

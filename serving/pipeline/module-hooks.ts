/**
 * Hooks of Node's module loader for the files of pipelines, which run in Node's thread for hooks:
 * `hypercube/pipeline` is this program's own copy, wherever the file is, and TypeScript is compiled
 * where Node cannot strip types itself.
 */
import { createRequire, type LoadHook, type ResolveHook } from 'node:module';
import { fileURLToPath } from 'node:url';
import { readText } from '../../lib/platform/files.ts';

export interface HookData {
  /** What `hypercube/pipeline` exports. */
  readonly names: readonly string[];
  /** Path of the TypeScript compiler; undefined: Node strips types itself. */
  readonly compiler?: string;
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

let data: HookData = { names: [] };
let compiler: Compiler | undefined;

export function initialize(given: HookData): void {
  data = given;
}

export const resolve: ResolveHook = async (specifier, context, nextResolve) => {
  if (specifier === ENTRY_NAME) return { url: ENTRY_URL, shortCircuit: true };
  return nextResolve(specifier, context);
};

export const load: LoadHook = async (url, context, nextLoad) => {
  if (url === ENTRY_URL) return { format: 'module', source: formatEntry(), shortCircuit: true };
  if (data.compiler === undefined || !/^file:.*\.m?ts$/.test(url)) return nextLoad(url, context);
  const fileName = fileURLToPath(url);
  compiler ??= createRequire(import.meta.url)(data.compiler) as Compiler;
  const { outputText } = compiler.transpileModule(readText(fileName), {
    fileName,
    compilerOptions: {
      target: compiler.ScriptTarget.ES2022,
      module: compiler.ModuleKind.ESNext,
      isolatedModules: true,
      inlineSourceMap: true,
    },
  });
  return { format: 'module', source: outputText, shortCircuit: true };
};

/** A module of its own file would have classes that are not those of the program. */
function formatEntry(): string {
  return `export const { ${data.names.join(', ')} } = globalThis.${ENTRY_GLOBAL};`;
}

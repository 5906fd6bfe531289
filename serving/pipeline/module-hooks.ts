/**
 * Hooks of Node's module loader for the files of pipelines, which run in Node's thread for hooks:
 * `hypercube/pipeline` is this program's own copy, wherever the file is, and TypeScript is compiled
 * where Node cannot strip types itself.
 */
import { createRequire, type LoadHook, type ResolveHook } from 'node:module';
import { fileURLToPath } from 'node:url';
import { readText } from '../../lib/platform/files.ts';

export interface HookData {
  /** Address of the module that `hypercube/pipeline` means. */
  readonly entry: string;
  /** Path of the TypeScript compiler; undefined: Node strips types itself. */
  readonly compiler?: string;
}

interface Compiler {
  transpileModule(source: string, options: object): { readonly outputText: string };
  readonly ScriptTarget: { readonly ES2022: number };
  readonly ModuleKind: { readonly ESNext: number };
}

const ENTRY_NAME = 'hypercube/pipeline';

let data: HookData = { entry: ENTRY_NAME };
let compiler: Compiler | undefined;

export function initialize(given: HookData): void {
  data = given;
}

export const resolve: ResolveHook = async (specifier, context, nextResolve) => {
  if (specifier === ENTRY_NAME) return { url: data.entry, shortCircuit: true };
  return nextResolve(specifier, context);
};

export const load: LoadHook = async (url, context, nextLoad) => {
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

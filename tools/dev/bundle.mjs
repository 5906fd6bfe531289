/**
 * Bundles the programs: each `main.js` of `dist/`, and each script that a program starts as a thread
 * or a process, starts a file of `dist/chunks/` that loads shared ones. Names and lines stay as they
 * are, so that stack traces can be read. The files are CommonJS, whose compiled code can be kept on
 * every version of Node (lib/platform/bundle-loader.ts). `dist/chunks/LICENSES.txt` has the licenses
 * of the packages inside.
 */
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { builtinModules } from 'node:module';
import { dirname, join, posix, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { rolldown } from 'rolldown';

const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
const CHUNKS = 'chunks';
const FOLDERS = ['lib', 'cube-server', 'cube-agent', 'serving', 'tools'];
/** The names of sources that are started as a process or a thread. */
const ENTRY = /\/(main|[\w-]+-worker|verification-process)\.ts$/;
/** Node's loader of ES modules imports it in a thread of its own. */
const HOOKS = 'serving/pipeline/module-hooks';
const LOADER_SOURCE = 'lib/platform/bundle-loader.ts';
const LOADER_FILE = 'bundle-loader.cjs';
/**
 * Stays in node_modules: native parts, what is large and seldom loaded, what is optional, what
 * fastify never loads.
 */
const EXTERNAL =
  /^(onnxruntime-node|classic-level|pino-pretty|@aws-sdk\/.*|@opentelemetry\/(?!api$).*|light-my-request|@fastify\/(ajv|fast-json-stringify)-compiler)$/;
/** What the starts of long-running programs load with `import()`. */
const LOADED_AT_START = {
  'cube-server/main.ts': ['cube-server/cli.ts', 'cube-server/server.ts'],
  'cube-agent/main.ts': ['cube-agent/commands/run-command.ts'],
  'serving/main.ts': ['serving/cli.ts', 'serving/server.ts'],
};
const PACKAGE = /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//;

/** The bundler follows calls of the `require` that is left when this one is removed. */
const LOADER = 'const require = createRequire(import.meta.url);';

const toPosix = (path) => path.split(sep).join('/');
const fromRoot = (id) => toPosix(relative(root, id));

/** An export as rolldown writes it, on six lines. */
const EXPORT =
  /Object\.defineProperty\(exports, "(\w+)", \{\s+enumerable: true,\s+get: function\(\) \{\s+return ([\w$]+);\s+\}\s+\}\);\n/g;
const EXPORTS = new RegExp(`(?:${EXPORT.source})+`, 'g');

/** Node 20 has no `import()` in code from a code cache. Node itself loads this file. */
const IMPORT_FILE = 'dynamic-import.cjs';
const IMPORT_SOURCE = '"use strict";\nexports.importModule = (name) => import(name);\n';
const IMPORT = /(?<![\w$#.])import\(/g;
/** Modules of Node that take long to load, and that most starts import but do not use. */
const LAZY =
  /(?<=\b(?:let|const) \w+ = )require\("(?:node:)?(https|http2|tls|dns|dns\/promises|child_process|readline)"\)(?=;)/g;

/**
 * Makes files smaller, and faster to read: many exports become one statement. Characters that are
 * not ASCII, which double the memory of a file's text, are escaped.
 */
const compact = {
  name: 'compact',
  generateBundle(_, files) {
    const toEscape = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;
    for (const file of Object.values(files)) {
      file.code = file.code
        .replaceAll(IMPORT, `require("../${CHUNKS}/${IMPORT_FILE}").importModule(`)
        .replaceAll(LAZY, `require("../${CHUNKS}/${LOADER_FILE}").loadLazily("node:$1")`)
        .replaceAll(EXPORTS, formatExports)
        .replaceAll(/[^\0-\x7f]/g, toEscape);
    }
  },
};

function formatExports(statements) {
  const getters = [...statements.matchAll(EXPORT)].map(
    ([, name, local]) => `\tget ${name}() { return ${local}; },\n`,
  );
  const descriptors = `Object.getOwnPropertyDescriptors({\n${getters.join('')}})`;
  return `Object.defineProperties(exports, ${descriptors});\n`;
}

/** Paths of the entries' sources. */
function listEntries() {
  return FOLDERS.flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true }).map((name) =>
      posix.join(folder, toPosix(name)),
    ),
  ).filter((path) => ENTRY.test(path));
}

const toDistPath = (path) => path.replace(/\.ts$/, '');
/** The name of an entry's file in `dist/chunks/`. */
const toEntryName = (path) => toDistPath(path).replaceAll('/', '-');

/**
 * Sources find files of `dist/` from their own place in it, which the bundle changes. `transform`
 * marks these expressions, and `renderChunk` writes the way from `dist/chunks/`.
 */
const keepPlaces = {
  name: 'keep-places',
  transform(code, id) {
    if (!id.endsWith('.ts') || !code.includes('import.meta.')) return undefined;
    const path = fromRoot(id);
    return code
      .replace(LOADER, '')
      .replaceAll('import.meta.dirname', `PLACE_FOLDER("${posix.dirname(path)}")`)
      .replaceAll('import.meta.url', `PLACE_URL("${path.replace(/\.ts$/, '.js')}")`);
  },
  renderChunk(code) {
    // The line of an entry that starts with `#!` stands inside a function.
    return code
      .replace(/^#!/, '//')
      .replaceAll(/PLACE_(FOLDER|URL)\("([^"]+)"\)/g, (_, kind, path) => {
        const place = `(__dirname + "/../${path}")`;
        return kind === 'URL' ? `require("node:url").pathToFileURL${place}.href` : place;
      });
  },
};

/**
 * Puts modules together that the same starts load, so that a start reads few files, and nothing that
 * it does not need. Modules that no start loads are left to the bundler, and entries, which run
 * when they are loaded, have files of their own.
 * @returns the names of files by module
 */
function assignModules(entries, context) {
  const loadedBy = new Map();
  entries.forEach((path, index) => {
    const reached = new Set([path, ...(LOADED_AT_START[path] ?? [])].map((one) => join(root, one)));
    for (const id of reached) {
      for (const imported of context.getModuleInfo(id)?.importedIds ?? []) reached.add(imported);
      loadedBy.set(id, (loadedBy.get(id) ?? 0n) | (1n << BigInt(index)));
    }
  });
  for (const path of entries) loadedBy.delete(join(root, path));
  const names = new Map();
  return new Map(
    [...loadedBy].map(([id, bits]) => {
      if (!names.has(bits)) names.set(bits, `part-${names.size + 1}`);
      return [id, names.get(bits)];
    }),
  );
}

function formatLicenses(modules) {
  const folders = modules.map((id) => PACKAGE.exec(toPosix(id))?.[1]).filter(Boolean);
  const texts = [...new Set(folders)].sort().map((folder) => {
    const { name, version, license } = JSON.parse(
      readFileSync(join(folder, 'package.json'), 'utf8'),
    );
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    const text = file === undefined ? '' : `\n${readFileSync(join(folder, file), 'utf8').trim()}\n`;
    return `${name} ${version}: ${license}\n${text}`;
  });
  const line = `\n${'-'.repeat(80)}\n`;
  return `The files of this folder contain these packages.\n${line}${texts.join(line)}`;
}

/** @param input sources by name @returns the written files */
async function bundle(input, plugins, output) {
  const bundled = await rolldown({
    cwd: root,
    input,
    platform: 'node',
    external: [EXTERNAL, /^node:/, ...builtinModules],
    ...(typeof input === 'object' && { preserveEntrySignatures: false }),
    plugins,
    // A busy machine makes the build slow, which is no defect of it.
    checks: { bundlerTimings: false },
    onLog(level, log, handle) {
      // Packages are used as they are.
      if (level === 'warn' && !log.message.includes('node_modules')) handle('error', log);
    },
  });
  const { output: files } = await bundled.write({
    comments: false,
    minifyInternalExports: false,
    ...output,
  });
  await bundled.close();
  return files;
}

function bundleEntries(entries) {
  let names;
  return bundle(
    Object.fromEntries(entries.map((path) => [toEntryName(path), join(root, path)])),
    [keepPlaces, compact],
    {
      dir: join(root, 'dist', CHUNKS),
      format: 'cjs',
      strict: true,
      entryFileNames: '[name].cjs',
      chunkFileNames: '[name]-[hash].cjs',
      codeSplitting: {
        groups: [
          {
            debugName: 'shared',
            name(id, context) {
              names ??= assignModules(entries, context);
              return names.get(id);
            },
          },
        ],
        // A module's imports are loaded by the same starts and maybe others: they have a name.
        includeDependenciesRecursively: false,
      },
    },
  );
}

/** Replaces the compiled entry by one that starts the file in `dist/chunks/`. */
function writeEntry(path) {
  const [firstLine] = readFileSync(join(root, path), 'utf8').split('\n', 1);
  const up = '../'.repeat(path.split('/').length - 1);
  const target = join(root, 'dist', path.replace(/\.ts$/, '.js'));
  const lines = [
    ...(firstLine.startsWith('#!') ? [firstLine] : []),
    "import { createRequire } from 'node:module';",
    'const require = createRequire(import.meta.url);',
    `const { startProgram } = require('${up}${CHUNKS}/${LOADER_FILE}');`,
    `startProgram(\`\${import.meta.dirname}/${up}${CHUNKS}/${toEntryName(path)}.cjs\`);`,
    '',
  ];
  mkdirSync(dirname(target), { recursive: true });
  writeFileSync(target, lines.join('\n'));
}

/** The files that an entry loads at its start, itself first. */
function listImports(file, files) {
  const reached = new Set([file]);
  for (const name of reached) {
    const { imports = [] } = files.find(({ fileName }) => fileName === name) ?? {};
    for (const one of imports) if (one.endsWith('.cjs')) reached.add(one);
  }
  return [...reached];
}

/**
 * Writes the bundle over the compiled programs.
 * @returns for each entry, by its path in dist/: the files of chunks/ that it loads at its start
 */
export async function bundlePrograms() {
  const folder = join(root, 'dist', CHUNKS);
  rmSync(folder, { recursive: true, force: true });
  const entries = listEntries();
  const files = await bundleEntries(entries);
  const described = entries.map((path) => [
    toDistPath(path),
    listImports(`${toEntryName(path)}.cjs`, files),
  ]);
  const loader = { file: join(folder, LOADER_FILE), format: 'cjs', strict: true };
  const hooks = { file: join(root, 'dist', `${HOOKS}.js`), format: 'es' };
  files.push(...(await bundle(join(root, LOADER_SOURCE), [], loader)));
  files.push(...(await bundle(join(root, `${HOOKS}.ts`), [], hooks)));
  writeFileSync(join(folder, IMPORT_FILE), IMPORT_SOURCE);
  for (const path of entries) writeEntry(path);
  const modules = files.flatMap(({ moduleIds }) => moduleIds ?? []);
  writeFileSync(join(folder, 'LICENSES.txt'), formatLicenses(modules));
  return Object.fromEntries(described);
}

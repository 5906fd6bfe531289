/**
 * Bundles the programs: each `main.js` of `dist/`, and each script that a program starts as a thread
 * or a process, becomes a small file that imports shared ones from `dist/chunks/`. A process then
 * loads about 20 files at its start instead of 350. Names and lines stay as they are, so that stack
 * traces can be read. `dist/chunks/LICENSES.txt` has the licenses of the packages inside.
 */
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { builtinModules } from 'node:module';
import { dirname, join, posix, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { rolldown } from 'rolldown';

const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
const CHUNKS = 'chunks';
const FOLDERS = ['lib', 'cube-server', 'cube-agent', 'serving', 'tools'];
/** The names of sources that are started as a process or a thread. */
const ENTRY = /\/(main|[\w-]+-(worker|hooks)|verification-process)\.ts$/;
/**
 * Stays in node_modules: native parts, what is large and seldom loaded, what is optional, what
 * fastify never loads.
 */
const EXTERNAL =
  /^(onnxruntime-node|classic-level|pino-pretty|@aws-sdk\/.*|@opentelemetry\/(?!api$).*|light-my-request|@fastify\/(ajv|fast-json-stringify)-compiler)$/;
/** What all programs load, and what servers load. */
const BASE = ['lib/platform/cli.ts', 'lib/platform/files.ts', 'lib/platform/logs.ts'];
const SERVER = ['lib/platform/metrics.ts', 'lib/rpc/one-port-server.ts', 'lib/rpc/http-server.ts'];
const PACKAGE = /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//;

/** The bundler follows calls of the `require` that is left when this one is removed. */
const LOADER = 'const require = createRequire(import.meta.url);';

const toPosix = (path) => path.split(sep).join('/');
const fromRoot = (id) => toPosix(relative(root, id));

/** Sources of the entries, by their path in dist/ without extension. */
function listEntries() {
  const paths = FOLDERS.flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true }).map((name) =>
      posix.join(folder, toPosix(name)),
    ),
  ).filter((path) => ENTRY.test(path));
  return Object.fromEntries(paths.map((path) => [path.replace(/\.ts$/, ''), join(root, path)]));
}

/**
 * Sources find files of `dist/` from their own place in it, which the bundle changes. `transform`
 * marks these expressions, and `renderChunk` writes the way from the file they ended up in.
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
  renderChunk(code, { fileName }) {
    return code.replaceAll(/PLACE_(FOLDER|URL)\("([^"]+)"\)/g, (_, kind, path) => {
      const way = `./${posix.relative(posix.dirname(fileName), path)}`;
      return kind === 'URL'
        ? `new URL("${way}", import.meta.url).href`
        : `(import.meta.dirname + "/${way}")`;
    });
  },
};

/**
 * Modules that the programs share are in two files: `base`, and `server` with what needs further
 * packages. @returns the names of these files by module
 */
function assignModules(context) {
  const names = new Map();
  const getImports = (id) => context.getModuleInfo(id)?.importedIds ?? [];
  const addClosure = (id, reached) => {
    if (reached.has(id)) return reached;
    reached.add(id);
    for (const imported of getImports(id)) addClosure(imported, reached);
    return reached;
  };
  for (const path of BASE) {
    for (const id of addClosure(join(root, path), new Set())) names.set(id, 'base');
  }
  for (const path of SERVER) {
    for (const id of addClosure(join(root, path), new Set())) {
      if (names.has(id)) continue;
      const needed = [...addClosure(id, new Set())].filter((one) => names.get(one) !== 'base');
      names.set(id, needed.some((one) => PACKAGE.test(toPosix(one))) ? 'server' : 'base');
    }
  }
  return names;
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

/** Writes the bundle over the compiled programs. */
export async function bundlePrograms() {
  const bundle = await rolldown({
    cwd: root,
    input: listEntries(),
    platform: 'node',
    external: [EXTERNAL, /^node:/, ...builtinModules],
    plugins: [keepPlaces],
    // A busy machine makes the build slow, which is no defect of it.
    checks: { bundlerTimings: false },
    onLog(level, log, handle) {
      // Packages are used as they are.
      if (level === 'warn' && !log.message.includes('node_modules')) handle('error', log);
    },
  });
  const folder = join(root, 'dist', CHUNKS);
  rmSync(folder, { recursive: true, force: true });
  let names;
  const { output } = await bundle.write({
    dir: join(root, 'dist'),
    format: 'es',
    comments: false,
    minifyInternalExports: false,
    entryFileNames: '[name].js',
    chunkFileNames: `${CHUNKS}/[name]-[hash].js`,
    codeSplitting: {
      groups: [
        {
          debugName: 'shared',
          name(id, context) {
            names ??= assignModules(context);
            return names.get(id);
          },
        },
      ],
    },
  });
  await bundle.close();
  const modules = output.flatMap(({ moduleIds }) => moduleIds ?? []);
  writeFileSync(join(folder, 'LICENSES.txt'), formatLicenses(modules));
}

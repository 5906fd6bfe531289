/**
 * `npm run pack:client [-- --output <folder>]` packs `hypercube-client`: the compiled files that
 * lib/client/index.ts reaches, and the packages that they import. Prints the path of the tarball.
 */
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, posix, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import typescript from 'typescript';

const NAME = 'hypercube-client';
const ENTRY = 'lib/client/index';
const README = 'docs/client.md';
const SCHEMA = 'docs/schemas/fleet.schema.json';
const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
const dist = join(root, 'dist');
const main = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));

/**
 * Adds what `file` reaches to `reached`.
 * @param extension of the files to follow: `.js` or `.d.ts`
 */
function followImports(file, extension, reached) {
  if (reached.files.has(file)) return;
  reached.files.add(file);
  const text = readFileSync(join(dist, file), 'utf8');
  // Such a file reads or starts others, which no import shows.
  if (text.includes('import.meta')) throw new Error(`${file} uses import.meta`);
  for (const { fileName } of typescript.preProcessFile(text, true, true).importedFiles) {
    if (fileName.startsWith('.')) {
      const target = posix.join(posix.dirname(file), fileName.replace(/\.(js|ts)$/, ''));
      followImports(`${target}${extension}`, extension, reached);
    } else if (!fileName.startsWith('node:')) {
      const parts = fileName.split('/');
      reached.packages.add(parts.slice(0, fileName.startsWith('@') ? 2 : 1).join('/'));
    }
  }
}

/** A package that is optional for all programs is optional for the client too. */
function createPackage({ packages }) {
  const names = [...packages].sort();
  const isOptional = (name) => name in main.optionalDependencies;
  // A library leaves its users a choice of versions; the programs pin theirs.
  const pick = (chosen, from) => Object.fromEntries(chosen.map((name) => [name, `^${from[name]}`]));
  const optional = names.filter(isOptional);
  const required = names.filter((name) => !isOptional(name));
  for (const name of required) {
    if (!(name in main.dependencies)) throw new Error(`${name} is not in dependencies`);
  }
  return {
    name: NAME,
    version: main.version,
    description: 'Clients of Hypercube: embedding lookups and click predictions.',
    license: main.license,
    type: 'module',
    exports: {
      '.': { types: `./${ENTRY}.d.ts`, default: `./${ENTRY}.js` },
      './package.json': './package.json',
    },
    types: `./${ENTRY}.d.ts`,
    engines: main.engines,
    dependencies: pick(required, main.dependencies),
    peerDependencies: pick(optional, main.optionalDependencies),
    peerDependenciesMeta: Object.fromEntries(optional.map((name) => [name, { optional: true }])),
  };
}

/** The page, with links to pages that are not packed as text: `([rules](x.md))` → (rules: docs/x.md). */
function createReadme() {
  const page = readFileSync(join(root, README), 'utf8');
  const link = /(\()?\[([^\]]*)\]\(([^)\s#]+)(?:#[^)\s]*)?\)(\))?/g;
  const text = page.replace(link, (all, open = '', title, target, close = '') => {
    if (/^[a-z]+:/.test(target)) return all;
    const path = posix.join(posix.dirname(README), target);
    if (path === SCHEMA) return `${open}[${title}](${posix.basename(SCHEMA)})${close}`;
    return open && close ? `(${title}: ${path})` : `${open}${title} (${path})${close}`;
  });
  return `${text}\nThe pages named docs/… are in the source repository of Hypercube.\n`;
}

function stage(folder) {
  const reached = { files: new Set(), packages: new Set() };
  for (const extension of ['.js', '.d.ts'])
    followImports(`${ENTRY}${extension}`, extension, reached);
  for (const file of reached.files) {
    const target = join(folder, file);
    mkdirSync(dirname(target), { recursive: true });
    // Source maps would lead to sources that are not packed.
    const text = readFileSync(join(dist, file), 'utf8').replace(
      /\n\/\/# sourceMappingURL=.*\n?$/,
      '\n',
    );
    writeFileSync(target, text);
  }
  copyFileSync(join(root, 'LICENSE'), join(folder, 'LICENSE'));
  copyFileSync(join(root, SCHEMA), join(folder, posix.basename(SCHEMA)));
  writeFileSync(join(folder, 'README.md'), createReadme());
  const text = `${JSON.stringify(createPackage(reached), undefined, 2)}\n`;
  writeFileSync(join(folder, 'package.json'), text);
}

const { values } = parseArgs({ options: { output: { type: 'string', default: '.' } } });
const folder = mkdtempSync(join(tmpdir(), 'hypercube-client-'));
try {
  stage(folder);
  const output = resolve(values.output);
  const npm = process.platform === 'win32' ? 'npm.cmd' : 'npm';
  const args = ['pack', '--ignore-scripts', '--silent', '--pack-destination', output];
  const name = execFileSync(npm, args, { cwd: folder, encoding: 'utf8' }).trim();
  console.log(join(output, name));
} finally {
  rmSync(folder, { recursive: true, force: true });
}

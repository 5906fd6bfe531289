/**
 * Checks the packages of package-lock.json, and writes a software bill of materials (CycloneDX).
 *
 *     node tools/dev/supply-chain.mjs [--sbom FILE]
 *
 * Exits with 1 and a line for each package whose licence is not in the list below, that has an
 * install script not in the list, or that lacks a checksum.
 */
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** Licences that allow use in a product without conditions on its own code. */
const LICENCES = new Set([
  '0BSD',
  'Apache-2.0',
  'BSD-2-Clause',
  'BSD-3-Clause',
  'BlueOak-1.0.0',
  'ISC',
  'MIT',
]);
LICENCES.add('MIT OR Apache-2.0').add('(MIT OR CC0-1.0)');
/** Licences of single packages, which are used unchanged and only to build and test. */
const LICENCES_OF_TOOLS = { argparse: 'Python-2.0', lightningcss: 'MPL-2.0' };
/** Packages that have an install script and work without it: .npmrc lets none run. */
const SCRIPTS_NOT_RUN = new Set(['classic-level', 'fsevents', 'onnxruntime-node', 'protobufjs']);

/** @returns one line for each problem of a parsed package-lock.json */
export function findProblems({ packages }, npmrc) {
  const problems = [];
  if (!/^ignore-scripts=true$/m.test(npmrc))
    problems.push('.npmrc: ignore-scripts=true is missing');
  for (const [path, entry] of Object.entries(packages)) {
    if (path === '' || entry.link) continue;
    const name = path.replace(/^.*node_modules\//, '');
    const tool = Object.keys(LICENCES_OF_TOOLS).find(
      (one) => name === one || name.startsWith(`${one}-`),
    );
    const isKnownTool =
      tool !== undefined && entry.dev && LICENCES_OF_TOOLS[tool] === entry.license;
    if (!LICENCES.has(entry.license) && !isKnownTool)
      problems.push(`${name}: licence ${entry.license ?? 'unknown'}`);
    if (entry.hasInstallScript && !SCRIPTS_NOT_RUN.has(name))
      problems.push(`${name}: has an install script`);
    if (!/^sha512-/.test(entry.integrity ?? '')) problems.push(`${name}: has no SHA-512 checksum`);
  }
  return problems;
}

function main() {
  const root = fileURLToPath(new URL('../..', import.meta.url));
  const lock = JSON.parse(readFileSync(`${root}package-lock.json`, 'utf8'));
  const problems = findProblems(lock, readFileSync(`${root}.npmrc`, 'utf8'));
  for (const problem of problems) console.error(problem);
  if (problems.length > 0) process.exit(1);
  const at = process.argv.indexOf('--sbom');
  if (at !== -1) {
    const args = ['sbom', '--sbom-format', 'cyclonedx', '--package-lock-only', '--omit', 'dev'];
    const sbom = execFileSync('npm', args, { cwd: root, maxBuffer: 64 << 20 });
    writeFileSync(process.argv[at + 1], sbom);
  }
  console.log(
    `${Object.keys(lock.packages).length - 1} packages: licences, scripts and checksums are as expected`,
  );
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main();

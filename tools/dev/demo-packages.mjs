/**
 * The packages that `npm start` needs: what the programs load, and what bundles them. Tools that only
 * check, test or trace take half the time of an installation.
 */
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** The development packages that build the programs and the console. */
const BUILD_PACKAGES = ['assemblyscript', 'preact', 'rolldown', 'uplot', 'vite'];
const LINKS = ['dependencies', 'optionalDependencies', 'peerDependencies'];

/** @returns where Node finds the package `name` from the package at `from` */
function findPackage(packages, from, name) {
  for (let folder = from; ; ) {
    const path = `${folder === '' ? '' : `${folder}/`}node_modules/${name}`;
    if (packages[path] !== undefined) return path;
    if (folder === '') return undefined;
    folder = folder.slice(0, Math.max(0, folder.lastIndexOf('/node_modules/')));
  }
}

/** Keeps the packages that the root needs. */
function selectPackages(packages) {
  const kept = { '': packages[''] };
  const add = (from) => {
    for (const name of LINKS.flatMap((link) => Object.keys(packages[from][link] ?? {}))) {
      const path = findPackage(packages, from, name);
      if (path === undefined || kept[path] !== undefined) continue;
      kept[path] = packages[path];
      add(path);
    }
    for (const name of Object.keys(from === '' ? packages[''].devDependencies : {})) {
      const path = findPackage(packages, '', name);
      if (kept[path] !== undefined) continue;
      kept[path] = packages[path];
      add(path);
    }
  };
  add('');
  return kept;
}

/** Leaves out what the demo does not need. */
function reduce(manifest) {
  const { devDependencies, ...reduced } = manifest;
  delete reduced.optionalDependencies;
  const builds = Object.entries(devDependencies).filter(([name]) => BUILD_PACKAGES.includes(name));
  return { ...reduced, devDependencies: Object.fromEntries(builds) };
}

/** Writes package.json and its lock file with the demo's packages into `folder`. */
export function writeDemoPackage(root, folder) {
  const read = (name) => JSON.parse(readFileSync(join(root, name), 'utf8'));
  const write = (name, value) => writeFileSync(join(folder, name), JSON.stringify(value));
  const { bin: _, ...manifest } = read('package.json');
  const lock = read('package-lock.json');
  const packages = { ...lock.packages, '': reduce(lock.packages['']) };
  mkdirSync(folder);
  copyFileSync(join(root, '.npmrc'), join(folder, '.npmrc'));
  write('package.json', reduce(manifest));
  write('package-lock.json', { ...lock, packages: selectPackages(packages) });
}

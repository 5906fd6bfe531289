/**
 * The folder is the layer: what each folder may import. test/policy/imports.test.ts shows with canaries
 * that these rules find violations.
 */
const deployables = '^(cube-server|cube-agent|serving|tools)/';

/** A layer may import itself and the folders named, and nothing else of this project. */
const layer = (folder, allowed) => ({
  name: `layer: ${folder}`,
  severity: 'error',
  from: { path: `^${folder}/` },
  to: {
    path: '^(lib|proto|cube-server|cube-agent|serving|tools|console|test|bench)/',
    pathNot: [folder, ...allowed].map((path) => `^${path}/`),
  },
});

/** A folder inside a deployable may import, inside it, only itself and the siblings named. */
const inside = (deployable, folder, allowed) => ({
  name: `inside ${deployable}: ${folder}`,
  severity: 'error',
  from: { path: `^${deployable}/${folder}/` },
  to: {
    path: `^${deployable}/`,
    pathNot: [folder, ...allowed].map((name) => `^${deployable}/${name}/`),
  },
});

module.exports = {
  forbidden: [
    // From the bottom: cube, fleet, gate; then host, doctor, rollout; then console;
    // then commands; then cli.ts.
    inside('cube-agent', 'cube', []),
    inside('cube-agent', 'fleet', []),
    inside('cube-agent', 'gate', []),
    inside('cube-agent', 'host', ['fleet']),
    inside('cube-agent', 'doctor', ['fleet']),
    inside('cube-agent', 'rollout', ['fleet']),
    inside('cube-agent', 'console', ['fleet', 'host', 'rollout']),
    inside('cube-agent', 'commands', [
      'cube',
      'fleet',
      'gate',
      'host',
      'doctor',
      'rollout',
      'console',
    ]),
    // From the bottom: stores; then engine, config, models, metrics, pipeline, protocols; then the
    // root files. The folder score is a program of its own.
    inside('serving', 'stores', []),
    inside('serving', 'engine', ['stores']),
    inside('serving', 'config', ['stores', 'engine']),
    inside('serving', 'models', ['stores', 'engine', 'config']),
    inside('serving', 'metrics', ['stores', 'engine', 'models']),
    inside('serving', 'pipeline', ['engine', 'models']),
    inside('serving', 'protocols', ['engine', 'models', 'metrics', 'pipeline']),
    inside('serving', 'score', ['stores', 'engine', 'models', 'protocols']),
    // In each tool the root files are the top.
    inside('tools/prune-model', 'cut', []),
    inside('tools/prune-model', 'onnx', ['cut']),
    inside('tools/prune-model', 'paddle', ['cut']),
    inside('tools/cube-builder', 'sources', []),
    inside('tools/ctr-client', 'rows', []),
    inside('tools/ctr-client', 'protocols', ['rows']),
    inside('tools/ctr-client', 'load', ['protocols', 'rows']),
    inside('tools/ctr-client', 'reports', ['rows', 'load']),
    layer('lib/core', []),
    layer('proto', ['lib/core']),
    layer('lib/platform', ['lib/core']),
    layer('lib/features', ['lib/core', 'lib/platform']),
    layer('lib/access', ['lib/core', 'lib/platform']),
    layer('lib/rpc', ['lib/core', 'lib/platform', 'lib/access', 'proto']),
    layer('lib/store', ['lib/core', 'lib/platform']),
    layer('lib/repository', ['lib/core', 'lib/platform']),
    layer('lib/console', ['lib/core', 'lib/platform', 'lib/rpc']),
    // The page speaks only HTTP.
    layer('console', []),
    layer('lib/client', [
      'lib/core',
      'lib/platform',
      'lib/access',
      'proto',
      'lib/rpc',
      'lib/store',
      'lib/repository',
    ]),
    {
      name: 'deployables meet in bytes or files, never in imports',
      severity: 'error',
      from: { path: '^(cube-server|cube-agent|serving|tools/[^/]+)/' },
      to: { path: deployables, pathNot: '^$1/' },
    },
    {
      name: 'nothing imports the page of the console',
      severity: 'error',
      from: { pathNot: '^console/' },
      to: { path: '^console/' },
    },
    {
      name: 'lib/core and proto are pure: no packages',
      severity: 'error',
      from: { path: '^(lib/core|proto)/' },
      to: { dependencyTypes: ['npm', 'npm-dev', 'npm-optional', 'npm-peer', 'core'] },
    },
    {
      name: 'onnxruntime-node is imported in one place',
      severity: 'error',
      from: { pathNot: '^lib/platform/onnx\\.ts$' },
      to: { path: 'onnxruntime-node' },
    },
    {
      name: 'production code never imports tests or benchmarks',
      severity: 'error',
      from: { pathNot: '^(test|bench)/' },
      to: { path: '^(test|bench)/' },
    },
    { name: 'no cycles', severity: 'error', from: {}, to: { circular: true } },
    {
      name: 'every import resolves',
      severity: 'error',
      from: {},
      to: { couldNotResolve: true },
    },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    exclude: { path: '^(dist|lib/core/kernels/assembly)/' },
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    enhancedResolveOptions: {
      extensions: ['.ts', '.tsx', '.mjs', '.js'],
      exportsFields: ['exports'],
      conditionNames: ['import', 'node', 'default'],
    },
  },
};

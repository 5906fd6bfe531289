/** The folder is the layer: what each folder may import. `test/house/imports.test.ts` shows that this guard bites. */
const deployables = '^(cube-server|cube-agent|serving|tools)/';

/** One rule for a layer: it may import itself, the folders named, Node's built-ins where allowed, and nothing else of ours. */
const layer = (folder, allowed) => ({
  name: `layer: ${folder}`,
  severity: 'error',
  from: { path: `^${folder}/` },
  to: {
    path: '^(lib|proto|cube-server|cube-agent|serving|tools|test|bench)/',
    pathNot: [folder, ...allowed].map((path) => `^${path}/`),
  },
});

module.exports = {
  forbidden: [
    layer('lib/core', []),
    layer('proto', ['lib/core']),
    layer('lib/platform', ['lib/core']),
    layer('lib/rpc', ['lib/core', 'lib/platform', 'proto']),
    layer('lib/store', ['lib/core', 'lib/platform']),
    layer('lib/repository', ['lib/core', 'lib/platform']),
    layer('lib/client', [
      'lib/core',
      'lib/platform',
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
      extensions: ['.ts', '.mjs', '.js'],
      exportsFields: ['exports'],
      conditionNames: ['import', 'node', 'default'],
    },
  },
};

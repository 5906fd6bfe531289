/** Loads and releases a plain model, whose path is the argument, and then has nothing to do. */
import { readFileSync } from 'node:fs';
import { requireDefined } from '../../../lib/core/errors.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { DEFAULT_BATCHING } from '../../../serving/engine/engine-options.ts';
import { LoadedGraph } from '../../../serving/engine/loaded-graph.ts';

const loaded = await LoadedGraph.load({
  name: 'm',
  version: '1',
  model: readFileSync(requireDefined(process.argv[2], 'the path of a model')),
  instances: 2,
  logger: createLogger('test', { level: 'silent' }),
  batching: { ...DEFAULT_BATCHING, maxBatch: undefined },
});
await loaded.close();
process.stdout.write('released\n');

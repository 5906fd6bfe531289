/** A serving process with a pipeline, inside the process of the test. */
import type { TestContext } from 'node:test';
import { createLogger } from '../../../lib/platform/logs.ts';
import { parsePipelineConfig } from '../../../serving/config/pipeline-config.ts';
import { completeConfig } from '../../../serving/config/serving-config.ts';
import type { PipelineModule } from '../../../serving/pipeline/pipeline-module.ts';
import { type Serving, startServing } from '../../../serving/server.ts';

interface PipelineProcessOptions {
  /** config.yml without its ports. */
  readonly config?: string;
  readonly secondPort?: number;
  readonly maxInFlight?: number;
  readonly logFolder?: string;
}

export async function servePipeline(
  t: TestContext,
  module: PipelineModule,
  { config = '', secondPort, maxInFlight = 64, logFolder }: PipelineProcessOptions = {},
): Promise<Serving> {
  const serving = await startServing({
    config: completeConfig({
      port: 0,
      models: [],
      hasPipeline: true,
      maxInFlight,
      messageBytes: 256 << 20,
      ...(secondPort !== undefined && { secondPort }),
    }),
    logger: createLogger('test', { level: 'silent' }),
    pipeline: {
      config: parsePipelineConfig(`rpc_port: 0\n${config}`, 'config.yml'),
      module: { name: 'toy', ...module },
      modelOfOp: new Map(),
      variables: new Map(),
      ...(logFolder !== undefined && { logFolder }),
    },
  });
  t.after(() => serving.stop());
  return serving;
}

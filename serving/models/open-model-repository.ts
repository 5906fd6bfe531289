/**
 * Creates the models of a model repository in Triton's layout. Settings that config.pbtxt cannot
 * express, recording and recorded warm-ups, are those of the process's configuration.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { suggestNames } from '../../lib/core/nearest-name.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { RepositoryConfig, RepositoryModelConfig } from '../config/repository-config.ts';
import type { EnsembleStep } from '../engine/ensemble-plan.ts';
import type { TensorModel } from '../engine/tensor-model.ts';
import { assignRecorder } from './assign-recorder.ts';
import { ModelRepository } from './model-repository.ts';
import type { Recorder, Recorders } from './recorder.ts';
import type { ModelPlan } from './repository-model.ts';
import { warmUpGraph } from './warm-up-graph.ts';

interface RepositoryParts {
  readonly events: {
    onSwitch(model: string, version: string): void;
    onLoadFailed(model: string, code: CubeError['code']): void;
  };
  readonly logger: Logger;
  readonly recorders: Recorders;
}

/**
 * The models are not started yet.
 * @throws CubeError when the folder or a file of `record` cannot be opened, or when settings name a
 *   model that the folder has not
 */
export async function openModelRepository(
  config: RepositoryConfig,
  { events, logger, recorders }: RepositoryParts,
): Promise<ModelRepository<TensorModel>> {
  // Few processes have one: its files are not part of every start.
  const { planTritonModel } = await import('./triton-models.ts');
  const find = ({ model, version }: EnsembleStep): TensorModel => {
    const found = repository.models.get(model);
    if (found === undefined) {
      throw new CubeError('NOT_FOUND', `the repository has no model ${model}`);
    }
    return version === undefined ? found.current : found.findByVersion(version);
  };
  const settings = new Map(config.models.map((model) => [model.name, model]));
  // One for all versions of a model, also of those that are loaded later.
  const recorderOf = new Map<string, Recorder>();
  const repository = new ModelRepository<TensorModel>({
    config,
    clock: systemClock,
    logger,
    plan: (look) => {
      const plan = planTritonModel(look, { logger, find });
      const { warmUp } = settings.get(look.name) ?? {};
      const parts = { warmUp, recorders, recorder: recorderOf.get(look.name), logger };
      return { ...plan, load: (...args) => loadVersion(plan, args, parts) };
    },
    onSwitch: (model, version) => events.onSwitch(model, version),
    onLoadFailed: (model, { code }) => events.onLoadFailed(model, code),
  });
  checkNames(config, [...repository.models.keys()], logger);
  for (const { name, record } of config.models) {
    if (record !== undefined) recorderOf.set(name, recorders.open(record, logger));
  }
  return repository;
}

/** Models may be added to the folder later, but not in mode none. */
function checkNames(
  { folder, mode, models }: RepositoryConfig,
  known: readonly string[],
  logger: Logger,
): void {
  for (const { name } of models) {
    if (known.includes(name)) continue;
    const problem = `${folder} has no model ${name}; ${suggestNames(name, known)}`;
    if (mode === 'none') {
      throw new CubeError('INVALID_ARGUMENT', `settings of model ${name}: ${problem}`);
    }
    logger.warn({ model: name, problem }, 'settings of a missing model');
  }
}

async function loadVersion(
  plan: ModelPlan<TensorModel>,
  [version, onStep, signal]: Parameters<ModelPlan<TensorModel>['load']>,
  {
    warmUp,
    recorders,
    recorder,
    logger,
  }: {
    readonly warmUp: RepositoryModelConfig['warmUp'] | undefined;
    readonly recorders: Recorders;
    readonly recorder: Recorder | undefined;
    readonly logger: Logger;
  },
): Promise<TensorModel> {
  const model = await plan.load(version, onStep, signal);
  if (warmUp !== undefined) {
    await warmUpGraph(model, { ...warmUp, logger, onStep, signal });
    model.stats.reset();
  }
  return assignRecorder(model, recorders, recorder);
}

/** The model services that a pipeline's config.yml wants on this machine. */
import { CubeError } from '../../lib/core/errors.ts';
import { parseEndpoint } from '../../lib/rpc/endpoint.ts';
import type { PipelineConfig } from './pipeline-config.ts';
import { readModelSource } from './pipeline-models.ts';

/** A service that serving starts as a process, for an op that calls it. */
export interface LocalServiceConfig {
  readonly op: string;
  readonly host: string;
  readonly port: number;
  /** Flags of its model. */
  readonly flags: readonly string[];
}

const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|::1)$/;

/**
 * An op with `server_endpoints` has such services if its `local_service_conf` has a `client_type`
 * of a remote service and a model. Without a `client_type`, the endpoints are services that others
 * start.
 * @param configPath the config.yml; paths start from its folder
 * @throws CubeError INVALID_ARGUMENT, NOT_FOUND naming the op
 */
export function readLocalServices(
  { ops }: PipelineConfig,
  configPath: string,
): readonly LocalServiceConfig[] {
  const services: LocalServiceConfig[] = [];
  const users = new Map<string, LocalServiceConfig>();
  for (const [op, { server_endpoints: endpoints = [], local_service_conf: conf }] of ops) {
    const { client_type: type, model_config: model = '' } = conf ?? {};
    if (endpoints.length === 0 || type === undefined || type === 'local_predictor') continue;
    if (model === '') {
      throw invalid(op, `local_service_conf.client_type ${type} needs model_config`);
    }
    const { model: file, bundleDir, ...settings } = readModelSource(op, conf ?? {}, configPath);
    const { precision, provider, devices } = settings;
    const flags = [
      ...(file === undefined ? ['--bundle-dir', String(bundleDir)] : ['--model', file]),
      ...(precision === undefined ? [] : ['--precision', precision]),
      ...(provider === undefined ? [] : ['--provider', provider.join(',')]),
      ...(devices === undefined ? [] : ['--devices', devices.join(',')]),
      // A KServe client calls the model with the name of its op.
      ...(file === undefined ? ['--bundle', op] : ['--name', op]),
    ];
    for (const endpoint of endpoints) {
      const { host, port } = parseEndpoint(endpoint);
      if (!LOOPBACK.test(host)) {
        throw invalid(
          op,
          `server_endpoints ${endpoint}: local_service_conf.client_type ${type} starts the ` +
            'service on this machine, so the host must be 127.0.0.1, ::1 or localhost; for a ' +
            'service elsewhere, remove client_type of local_service_conf',
        );
      }
      const other = users.get(endpoint);
      if (other !== undefined) {
        throw invalid(op, `server_endpoints ${endpoint}: op ${other.op} starts its service there`);
      }
      const service = { op, host, port, flags };
      users.set(endpoint, service);
      services.push(service);
    }
  }
  return services;
}

function invalid(op: string, problem: string): CubeError {
  return new CubeError('INVALID_ARGUMENT', `op ${op}: ${problem}`);
}

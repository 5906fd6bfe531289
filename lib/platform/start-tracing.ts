/**
 * Turns tracing on where the standard variables of OpenTelemetry ask for it. The packages that
 * collect and send spans are optional, and loaded only then.
 */
import type { SpanExporter } from '@opentelemetry/sdk-trace-base';
import { CubeError } from '../core/errors.ts';
import type { Logger } from './logs.ts';
import { disableTracing, enableTracing } from './tracing.ts';

type Exporter = 'otlp' | 'console';
type Environment = Readonly<Record<string, string | undefined>>;

const PROTOCOL = 'http/protobuf';
const PACKAGES =
  '@opentelemetry/sdk-trace-base @opentelemetry/resources @opentelemetry/exporter-trace-otlp-proto';

/** Tracing of this process. */
export interface StartedTracing {
  /** Sends the spans that are not sent yet. Never rejects. */
  stop(): Promise<void>;
}

/**
 * @param serviceName where neither OTEL_SERVICE_NAME nor OTEL_RESOURCE_ATTRIBUTES gives one
 * @returns undefined when the variables do not ask for tracing
 * @throws CubeError INVALID_ARGUMENT, or UNSUPPORTED when the packages are not installed
 */
export async function startTracing(
  serviceName: string,
  logger: Logger,
  environment: Environment = process.env,
): Promise<StartedTracing | undefined> {
  const exporters = readExporters(environment);
  if (exporters.length === 0) return undefined;
  const api = await import('@opentelemetry/api');
  const { sdk, resources, otlp } = await loadPackages();
  const create = (exporter: Exporter): SpanExporter =>
    exporter === 'otlp' ? new otlp.OTLPTraceExporter() : new sdk.ConsoleSpanExporter();
  const own = resources.resourceFromAttributes({ 'service.name': serviceName });
  const given = resources.detectResources({ detectors: [resources.envDetector] });
  const provider = new sdk.BasicTracerProvider({
    resource: resources.defaultResource().merge(own).merge(given),
    spanProcessors: exporters.map((exporter) => new sdk.BatchSpanProcessor(create(exporter))),
  });
  const warn = (error: string): void => logger.warn({ error }, 'tracing failed');
  const ignore = (): void => undefined;
  const diagnostics = { error: warn, warn, info: ignore, debug: ignore, verbose: ignore };
  api.diag.setLogger(diagnostics, api.DiagLogLevel.WARN);
  api.trace.setGlobalTracerProvider(provider);
  await enableTracing();
  logger.info({ exporters }, 'tracing is on');
  return {
    async stop() {
      disableTracing();
      await provider.shutdown().catch((error: unknown) => warn(CubeError.from(error).message));
    },
  };
}

/** @returns where spans go; none: tracing is off. @throws CubeError INVALID_ARGUMENT */
export function readExporters(environment: Environment): readonly Exporter[] {
  const read = (name: string): string => environment[name]?.trim() ?? '';
  if (read('OTEL_SDK_DISABLED').toLowerCase() === 'true') return [];
  const named = read('OTEL_TRACES_EXPORTER');
  const endpoint =
    read('OTEL_EXPORTER_OTLP_TRACES_ENDPOINT') || read('OTEL_EXPORTER_OTLP_ENDPOINT');
  if (named === 'none' || (named === '' && endpoint === '')) return [];
  const exporters = named === '' ? ['otlp'] : named.split(',').map((name) => name.trim());
  if (!exporters.every(isExporter)) {
    const text = `OTEL_TRACES_EXPORTER: expected otlp, console or none, got ${named}`;
    throw new CubeError('INVALID_ARGUMENT', text);
  }
  if (exporters.includes('otlp')) {
    const protocol =
      read('OTEL_EXPORTER_OTLP_TRACES_PROTOCOL') || read('OTEL_EXPORTER_OTLP_PROTOCOL');
    if (protocol !== '' && protocol !== PROTOCOL) {
      const text = `OTEL_EXPORTER_OTLP_PROTOCOL: expected ${PROTOCOL}, got ${protocol}`;
      throw new CubeError('INVALID_ARGUMENT', text);
    }
  }
  return exporters;
}

function isExporter(name: string): name is Exporter {
  return name === 'otlp' || name === 'console';
}

async function loadPackages() {
  try {
    const [sdk, resources, otlp] = await Promise.all([
      import('@opentelemetry/sdk-trace-base'),
      import('@opentelemetry/resources'),
      import('@opentelemetry/exporter-trace-otlp-proto'),
    ]);
    return { sdk, resources, otlp };
  } catch (error) {
    const text = `tracing needs packages that are not installed: npm install ${PACKAGES}`;
    throw new CubeError('UNSUPPORTED', text, { cause: error });
  }
}

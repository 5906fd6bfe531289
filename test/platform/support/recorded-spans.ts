/** Tracing with a real provider that keeps the spans of this process, for one test. */
import type { TestContext } from 'node:test';
import { trace } from '@opentelemetry/api';
import {
  BasicTracerProvider,
  InMemorySpanExporter,
  type ReadableSpan,
  SimpleSpanProcessor,
} from '@opentelemetry/sdk-trace-base';
import { disableTracing, enableTracing } from '../../../lib/platform/tracing.ts';

/** @returns a function that lists the ended spans */
export async function recordSpans(t: TestContext): Promise<() => readonly ReadableSpan[]> {
  const exporter = new InMemorySpanExporter();
  const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
  trace.setGlobalTracerProvider(provider);
  await enableTracing();
  t.after(() => {
    disableTracing();
    trace.disable();
  });
  return () => exporter.getFinishedSpans();
}

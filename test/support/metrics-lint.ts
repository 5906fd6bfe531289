/**
 * The rules of `promtool check metrics` for metrics in Prometheus text: help, suffixes by type,
 * base units written out, snake_case, no type in a name. Metrics of other systems' dashboards and
 * of Node have names of their own.
 */

const FOREIGN = /^(nv_|nodejs_|process_)/;
const BASE_UNITS = ['bytes', 'seconds', 'celsius', 'grams', 'joules', 'meters', 'ratio', 'volts'];
const PREFIXED = /^(milli|micro|nano|kilo|kibi|mega|mebi|giga|gibi)(byte|second|gram|meter)s?$/;
const OTHER_UNITS = /^(millis|micros|nanos|minutes?|hours?|days?|weeks?|bits?|percent)$/;
const ABBREVIATIONS = ['s', 'ms', 'us', 'ns', 'sec', 'b', 'kb', 'mb', 'gb', 'tb', 'm', 'h', 'd'];
const TYPES = ['counter', 'gauge', 'histogram', 'summary'];
const SERIES_SUFFIXES = ['_bucket', '_count', '_sum'];

interface Metric {
  readonly name: string;
  readonly help: string;
  readonly type: string;
}

/** @returns the problems, `<metric>: <problem>` */
export function lintMetrics(text: string): string[] {
  return readMetrics(text)
    .filter(({ name }) => !FOREIGN.test(name))
    .flatMap((metric) => lintMetric(metric).map((problem) => `${metric.name}: ${problem}`));
}

function readMetrics(text: string): Metric[] {
  const helps = new Map(
    [...text.matchAll(/^# HELP (\S+) ?(.*)$/gm)].map(([, name = '', help = '']) => [name, help]),
  );
  return [...text.matchAll(/^# TYPE (\S+) (\S+)$/gm)].map(([, name = '', type = '']) => {
    return { name, type, help: helps.get(name) ?? '' };
  });
}

function lintMetric({ name, help, type }: Metric): string[] {
  const parts = name.split('_');
  const isDistribution = type === 'histogram' || type === 'summary';
  const isTotal = name.endsWith('_total');
  const checks: readonly (readonly [boolean, string])[] = [
    [help.trim() === '', 'no help text'],
    [type === 'counter' && !isTotal, 'a counter must end in _total'],
    [type !== 'counter' && isTotal, `a ${type} must not end in _total`],
    [
      !isDistribution && SERIES_SUFFIXES.some((suffix) => name.endsWith(suffix)),
      `a ${type} must not end in ${SERIES_SUFFIXES.join(', ')}`,
    ],
    [!/^[a-z][a-z0-9_]*$/.test(name), 'not snake_case'],
    [parts.some((part) => TYPES.includes(part)), 'the type is part of the name'],
    [
      parts.some((part) => PREFIXED.test(part) || OTHER_UNITS.test(part)),
      `use a base unit (${BASE_UNITS.join(', ')})`,
    ],
    [parts.some((part) => ABBREVIATIONS.includes(part)), 'an abbreviated unit'],
  ];
  return checks.flatMap(([isWrong, problem]) => (isWrong ? [problem] : []));
}

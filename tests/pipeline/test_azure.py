"""Metrics of Azure Monitor beside the outages that they are about."""

from __future__ import annotations

import json

from kombu_paired.pipeline.tables.service import SERVICE_COLUMNS, read_metrics, service_side
from tests.pipeline.writing import write

RESOURCE = "/SUBSCRIPTIONS/1/RESOURCEGROUPS/G/PROVIDERS/MICROSOFT.SERVICEBUS/NAMESPACES/SHOP"


def exported(minute, metric, total, **more):
    return json.dumps(
        {"count": 1, "total": total, "minimum": 0, "maximum": total, "average": total, "resourceId": RESOURCE}
        | {"time": f"2026-03-02T10:{minute:02}:00.0000000Z", "metricName": metric, "timeGrain": "PT1M"} | more
    )  # fmt: skip


def answered(metric, series):
    data = {
        entity: [{"timeStamp": f"2026-03-02T10:{minute:02}:00Z", **values} for minute, values in each.items()]
        for entity, each in series.items()
    }
    value = {
        "id": f"/subscriptions/1/resourceGroups/g/providers/Microsoft.ServiceBus/namespaces/shop/providers/"
        f"Microsoft.Insights/metrics/{metric}",
        "type": "Microsoft.Insights/metrics",
        "name": {"value": metric, "localizedValue": metric},
        "timeseries": [
            {
                "metadatavalues": [{"name": {"value": "entityname", "localizedValue": "e"}, "value": entity}],
                "data": each,
            }
            for entity, each in data.items()
        ],
    }
    return json.dumps({"cost": 0, "timespan": "…", "interval": "PT1M", "value": [value], "namespace": "…"}, indent=2)


def test_the_services_side_of_outages(spark, tmp_path):
    write(
        tmp_path / "y=2026" / "m=03" / "d=02" / "h=10" / "m=00" / "PT1H.json",
        exported(4, "IncomingMessages", 1000),  # before
        *(exported(minute, "IncomingMessages", minute) for minute in (5, 6, 7)),
        exported(8, "IncomingMessages", 1000),  # after
        exported(6, "OutgoingMessages", 2, resourceId=RESOURCE.replace("SHOP", "OTHER")),
        "",
    )
    errors = {"orders": {5: {"total": 3.0}, 9: {"total": 50.0}}, "emails": {7: {"total": 4.0}}}
    write(tmp_path / "errors.json", answered("ServerErrors", errors))
    active = {"orders": {5: {"average": 7.0, "maximum": 9.0}, 6: {"average": 20.0}}}
    write(tmp_path / "active.json", answered("ActiveMessages", active))
    outages = spark.sql(
        "select * from values"
        " ('entity', 'Shop', 'orders', timestamp '2026-03-02 10:05:30', timestamp '2026-03-02 10:07:10'),"
        " ('namespace', 'Shop', null, timestamp '2026-03-02 10:05:30', timestamp '2026-03-02 10:07:10'),"
        " ('namespace', 'elsewhere', null, timestamp '2026-03-02 10:05:30', timestamp '2026-03-02 10:07:10')"
        " as t(scope, pairing, entity, first_failure_at, ended_at)"
    )
    table = service_side(outages, read_metrics(spark, [str(tmp_path)]))
    assert tuple(table.columns) == SERVICE_COLUMNS
    found = {(row.scope, row.pairing): tuple(row)[5:] for row in table.collect()}
    assert found == {
        ("entity", "Shop"): (None, None, 3.0, None, 20.0),
        ("namespace", "Shop"): (18.0, None, 7.0, None, 20.0),
        ("namespace", "elsewhere"): (None,) * 5,
    }
